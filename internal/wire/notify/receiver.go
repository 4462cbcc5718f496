package notify

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// receiveBuffer is asked of the kernel, in bytes. It is a wish; the queue also has a length of its own.
const receiveBuffer = 1 << 20

// drainMost is more datagrams than the queue of a socket can hold.
const drainMost = 4096

// Receiver is the service's end of one worker life's notify socket.
type Receiver struct {
	path   string
	handle func(Credentials, []Word)
	odd    func(error)

	reading sync.Mutex // held from taking a datagram out of the socket until it has been handled
	buf     []byte
	oob     []byte // has room for the sender's credentials and nothing else: descriptors that are passed are closed by the kernel
	junk    atomic.Uint64
	readers sync.WaitGroup

	mu     sync.Mutex
	owner  int             // whose the socket's file is; 0: ours
	conns  []*net.UnixConn // the newest last: who has connected to an older one still speaks there
	closed bool
}

// Credentials are what the kernel says of who has sent a datagram: unix(7), SCM_CREDENTIALS. The zero value says
// nothing of the sender.
type Credentials struct {
	PID int // in our pid namespace; 0: of none that can be seen from here
	UID uint32
}

// Listen binds a notify socket at path, mode 0600, and hands the words of each datagram and its sender to
// handle, in the order in which they were sent and never two at a time. odd is called with the first junk
// only; it may be nil. Both must return quickly, for nobody reads the socket meanwhile: its queue is short.
func Listen(path string, handle func(Credentials, []Word), odd func(error)) (*Receiver, error) {
	r := &Receiver{path: path, handle: handle, odd: odd, buf: make([]byte, MaxDatagram+1), oob: make([]byte, unix.CmsgSpace(unix.SizeofUcred))}
	if err := r.bind(); err != nil {
		return nil, err
	}
	return r, nil
}

// Restore binds the socket again where its file has been removed. Who sends to the path is heard from
// then on, and who has connected before is heard as ever.
func (r *Receiver) Restore() error {
	if _, err := os.Lstat(r.path); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return r.bind()
}

// bind binds a socket at the path and begins to read it.
func (r *Receiver) bind() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	conn, err := listenWithCredentials(r.path)
	if err != nil {
		return fmt.Errorf("bind notify socket: %w", err)
	}
	if err := os.Chmod(r.path, 0o600); err != nil {
		conn.Close()
		os.Remove(r.path)
		return fmt.Errorf("protect notify socket: %w", err)
	}
	if r.owner != 0 {
		if err := os.Lchown(r.path, r.owner, -1); err != nil {
			conn.Close()
			os.Remove(r.path)
			return fmt.Errorf("give notify socket to user %d: %w", r.owner, err)
		}
	}
	// Best effort: the kernel's default works too.
	_ = conn.SetReadBuffer(receiveBuffer)
	raw, err := conn.SyscallConn()
	if err != nil {
		conn.Close()
		os.Remove(r.path)
		return fmt.Errorf("read notify socket: %w", err)
	}
	r.conns = append(r.conns, conn)
	r.readers.Go(func() {
		// Ends when the socket is closed, or when it cannot be read any more.
		_ = raw.Read(func(fd uintptr) bool {
			for {
				if o := r.takeOne(int(fd)); o != taken {
					return o == ended
				}
			}
		})
	})
	return nil
}

// GiveTo lets processes of that user send, beside root's, and those of no other.
func (r *Receiver) GiveTo(uid int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.owner = uid
	if err := os.Lchown(r.path, uid, -1); err != nil {
		return fmt.Errorf("give notify socket to user %d: %w", uid, err)
	}
	return nil
}

// listenWithCredentials binds a socket on which the kernel names each sender, from the first datagram on.
func listenWithCredentials(path string) (*net.UnixConn, error) {
	lc := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var failed error
		err := raw.Control(func(fd uintptr) {
			failed = os.NewSyscallError("setsockopt SO_PASSCRED", unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, 1))
		})
		return errors.Join(err, failed)
	}}
	conn, err := lc.ListenPacket(context.Background(), "unixgram", path)
	if err != nil {
		return nil, err //nolint:wrapcheck // bind says what it is about
	}
	return conn.(*net.UnixConn), nil
}

// Junk says how many datagrams held something that was not understood.
func (r *Receiver) Junk() uint64 { return r.junk.Load() }

// Drain handles what lies in the socket now, and returns when it has been handled. Called after the
// worker's death it makes sure that its last words count. What a child of it goes on saying cannot hold
// Drain up.
func (r *Receiver) Drain() {
	r.mu.Lock()
	conns := slices.Clone(r.conns)
	r.mu.Unlock()
	for _, conn := range conns {
		raw, err := conn.SyscallConn()
		if err != nil {
			return // closed
		}
		_ = raw.Control(func(fd uintptr) {
			for range drainMost {
				if r.takeOne(int(fd)) != taken {
					return
				}
			}
		})
	}
}

// Close stops reading, removes the socket and returns when no handler runs any more. It must not be
// called from a handler.
func (r *Receiver) Close() {
	r.mu.Lock()
	if !r.closed {
		r.closed = true
		for _, conn := range r.conns {
			conn.Close()
		}
		os.Remove(r.path)
	}
	r.mu.Unlock()
	r.readers.Wait()
}

// outcome is what became of an attempt to read a datagram.
type outcome int

const (
	taken outcome = iota
	empty         // nothing lies in the socket
	ended         // it cannot be read any more
)

// takeOne reads one datagram and handles it, if one is there.
func (r *Receiver) takeOne(fd int) outcome {
	r.reading.Lock()
	defer r.reading.Unlock()
	n, oobn, _, _, err := unix.Recvmsg(fd, r.buf, r.oob, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	switch {
	case errors.Is(err, unix.EINTR):
		return taken // nothing was, but something may be there
	case errors.Is(err, unix.EAGAIN):
		return empty
	case err != nil:
		return ended
	}
	words, err := Parse(r.buf[:n])
	if len(words) > 0 {
		r.handle(credentials(r.oob[:oobn]), words)
	}
	if err != nil && r.junk.Add(1) == 1 && r.odd != nil {
		r.odd(err)
	}
	return taken
}

// credentials reads who has sent a datagram.
func credentials(oob []byte) Credentials {
	hdr, data, _, err := unix.ParseOneSocketControlMessage(oob)
	if err != nil || hdr.Level != unix.SOL_SOCKET || hdr.Type != unix.SCM_CREDENTIALS || len(data) < unix.SizeofUcred {
		return Credentials{}
	}
	return Credentials{PID: int(int32(binary.NativeEndian.Uint32(data))), UID: binary.NativeEndian.Uint32(data[4:])}
}
