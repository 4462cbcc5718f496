package example

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// voice says things on the notify socket (the sd_notify convention). It never fails: a word that
// nobody takes is dropped.
type voice struct {
	path string // empty: nobody listens
	fd   int
}

func newVoice(path string) voice {
	if path == "" {
		return voice{fd: -1}
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return voice{fd: -1}
	}
	return voice{path: path, fd: fd}
}

// say sends the words in one datagram, each a KEY=VALUE. It never waits: where the listener's queue
// is full they are dropped.
func (v voice) say(words ...string) { _ = v.send(words) }

// insist sends words that must not be lost to a full queue: it waits for up to half a second.
func (v voice) insist(words ...string) {
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	over := time.NewTimer(500 * time.Millisecond)
	defer over.Stop()
	for errors.Is(v.send(words), unix.EAGAIN) {
		select {
		case <-again.C:
		case <-over.C:
			return
		}
	}
}

func (v voice) send(words []string) error {
	if v.fd < 0 {
		return nil
	}
	return unix.Sendto(v.fd, []byte(strings.Join(words, "\n")), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, &unix.SockaddrUnix{Name: v.path})
}

func (v voice) close() {
	if v.fd >= 0 {
		_ = unix.Close(v.fd)
	}
}

// order is what a worker is told by its inbox.
type order struct {
	stop bool
	step int64  // SET_STEP
	seq  string // to acknowledge it with
}

// inbox listens at path and hands on what it is told until close is called. Without a path nothing
// ever comes.
func inbox(path string) (orders <-chan order, closeInbox func(), err error) {
	if path == "" {
		return nil, func() {}, nil
	}
	_ = os.Remove(path) // of an earlier process of this life
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return nil, nil, fmt.Errorf("open inbox: %w", err)
	}
	out, done := make(chan order), make(chan struct{})
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := c.Read(buf)
			if err != nil {
				return
			}
			o, ok := parseOrder(string(bytes.TrimSpace(buf[:n])))
			if !ok {
				continue
			}
			select {
			case out <- o:
			case <-done:
				return
			}
		}
	}()
	return out, func() { close(done); _ = c.Close(); _ = os.Remove(path) }, nil
}

// parseOrder reads "SET_STEP=N SEQ=k" or "STOP=1".
func parseOrder(s string) (order, bool) {
	var o order
	said := false
	for _, word := range strings.Fields(s) {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "STOP":
			o.stop, said = value == "1", true
		case "SET_STEP":
			n, err := strconv.ParseInt(value, 10, 64)
			if err != nil || n < 0 {
				return order{}, false
			}
			o.step, said = n, true
		case "SEQ":
			o.seq = value
		}
	}
	return o, said
}
