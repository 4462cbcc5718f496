package notify

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// ErrNobody says that the worker does not listen on its inbox.
var ErrNobody = errors.New("nobody listens")

// Stop asks a worker to end in order.
const Stop = "STOP=1"

// SetStep asks a worker to go on from a step. It answers with X_VIGIL_ACK=seq on its notify socket.
func SetStep(step, seq int64) string { return fmt.Sprintf("SET_STEP=%d SEQ=%d", step, seq) }

// Send puts one message into the inbox that a worker has bound at path, and never waits. The error
// wraps ErrNobody when no socket is there or nobody reads it any more; any other error, such as a full
// inbox, says that the message did not arrive.
func Send(path, message string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("open socket to inbox: %w", err)
	}
	defer unix.Close(fd)
	err = unix.Sendto(fd, []byte(message), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, &unix.SockaddrUnix{Name: path})
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ECONNREFUSED):
		return fmt.Errorf("send to inbox %s: %w", path, ErrNobody)
	case errors.Is(err, unix.EAGAIN):
		return fmt.Errorf("send to inbox %s: it is full", path)
	default:
		return fmt.Errorf("send to inbox %s: %w", path, err)
	}
}

// Listens says whether a worker has bound its inbox at path and lives to read it.
func Listens(path string) bool {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return unix.Connect(fd, &unix.SockaddrUnix{Name: path}) == nil
}
