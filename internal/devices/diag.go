package devices

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The words of sock_diag(7) and linux/unix_diag.h that x/sys does not have.
const (
	diagByFamily = 20
	diagShowUID  = 0x40
	diagUID      = 7 // attribute, since Linux 5.3
)

// ownerOf returns which user has a socket, for those that do not answer; unknown where the kernel cannot say.
func ownerOf(inode uint64) int {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return unknown
	}
	defer unix.Close(fd)
	limit := unix.Timeval{Sec: 1}
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit)
	request := make([]byte, 40)                                    // struct nlmsghdr, struct unix_diag_req
	binary.NativeEndian.PutUint32(request[0:], 40)                 // length
	binary.NativeEndian.PutUint16(request[4:], diagByFamily)       // type
	binary.NativeEndian.PutUint16(request[6:], unix.NLM_F_REQUEST) // flags
	request[16] = unix.AF_UNIX
	binary.NativeEndian.PutUint32(request[20:], ^uint32(0))    // states
	binary.NativeEndian.PutUint32(request[24:], uint32(inode)) // which
	binary.NativeEndian.PutUint32(request[28:], diagShowUID)   // what
	binary.NativeEndian.PutUint64(request[32:], ^uint64(0))    // cookie: any
	if err := unix.Sendto(fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return unknown
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return unknown
	}
	return parseDiag(answer[:n])
}

// parseDiag reads the uid out of an answer: struct nlmsghdr, struct unix_diag_msg, attributes.
func parseDiag(b []byte) int {
	const head = 16 + 16
	if len(b) < head || binary.NativeEndian.Uint16(b[4:]) != diagByFamily {
		return unknown
	}
	for b = b[head:]; len(b) >= 4; {
		size, kind := int(binary.NativeEndian.Uint16(b)), binary.NativeEndian.Uint16(b[2:])
		if size < 4 || size > len(b) {
			break
		}
		if kind == diagUID && size >= 8 {
			return int(binary.NativeEndian.Uint32(b[4:]))
		}
		b = b[min((size+3)&^3, len(b)):]
	}
	return unknown
}

// processOf finds a process that has a socket among those whose descriptors we may see: all for root, else our own.
func processOf(inode uint64) int {
	want := fmt.Sprintf("socket:[%d]", inode)
	links, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil && to == want {
			pid, err := strconv.Atoi(strings.Split(link, "/")[2])
			if err == nil {
				return pid
			}
		}
	}
	return 0
}
