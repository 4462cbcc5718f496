package caller

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// The sizes, in bytes, of what sock_diag(7) is asked and answers.
const (
	headerSize  = unix.SizeofNlMsghdr
	requestSize = 56 // struct inet_diag_req_v2
	answerSize  = 72 // struct inet_diag_msg
)

// bySockDiag asks the kernel for one TCP socket by its two addresses.
func bySockDiag(local, remote netip.AddrPort) (socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_INET_DIAG)
	if err != nil {
		return socket{}, fmt.Errorf("ask the kernel by sock_diag: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Sendto(fd, diagRequest(local, remote), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return socket{}, fmt.Errorf("ask the kernel by sock_diag: %w", err)
	}
	var buf [4096]byte
	n, from, err := unix.Recvfrom(fd, buf[:], unix.MSG_DONTWAIT) // the kernel has answered before Sendto returned
	if err != nil {
		return socket{}, fmt.Errorf("ask the kernel by sock_diag: %w", err)
	}
	if sender, ok := from.(*unix.SockaddrNetlink); !ok || sender.Pid != 0 {
		return socket{}, errors.New("ask the kernel by sock_diag: somebody else has answered")
	}
	return readDiag(buf[:n])
}

// diagRequest asks for one socket of TCP.
func diagRequest(local, remote netip.AddrPort) []byte {
	m := make([]byte, headerSize+requestSize)
	native := binary.NativeEndian
	native.PutUint32(m[0:], uint32(len(m)))
	native.PutUint16(m[4:], unix.SOCK_DIAG_BY_FAMILY)
	native.PutUint16(m[6:], unix.NLM_F_REQUEST)
	r := m[headerSize:]
	r[0], r[1] = unix.AF_INET6, unix.IPPROTO_TCP
	if local.Addr().Is4() {
		r[0] = unix.AF_INET
	}
	native.PutUint32(r[4:], ^uint32(0)) // any state
	binary.BigEndian.PutUint16(r[8:], local.Port())
	binary.BigEndian.PutUint16(r[10:], remote.Port())
	copy(r[12:28], local.Addr().AsSlice())
	copy(r[28:44], remote.Addr().AsSlice())
	native.PutUint64(r[48:], ^uint64(0)) // whichever socket has these addresses
	return m
}

// readDiag reads the kernel's answer.
func readDiag(m []byte) (socket, error) {
	native := binary.NativeEndian
	if len(m) < headerSize {
		return socket{}, fmt.Errorf("read the answer of sock_diag: it has %d bytes", len(m))
	}
	body := m[headerSize:]
	switch kind := native.Uint16(m[4:]); {
	case kind == unix.NLMSG_ERROR && len(body) >= 4:
		return socket{}, fmt.Errorf("ask the kernel by sock_diag: %w", unix.Errno(-int32(native.Uint32(body))))
	case kind != unix.SOCK_DIAG_BY_FAMILY || len(body) < answerSize:
		return socket{}, fmt.Errorf("read the answer of sock_diag: type %d with %d bytes", kind, len(body))
	}
	return socket{state: body[1], uid: int(native.Uint32(body[64:])), inode: uint64(native.Uint32(body[68:]))}, nil
}
