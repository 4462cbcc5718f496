package caller

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
)

// byProc looks a TCP socket up in the kernel's tables for reading (proc(5)).
func byProc(local, remote netip.AddrPort) (socket, error) {
	var errs []error
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, err := os.Open(table)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		s, found, err := inTable(f, local, remote)
		f.Close()
		if found {
			return s, nil
		}
		errs = append(errs, err)
	}
	return socket{}, errors.Join(append(errs, fmt.Errorf("no socket from %s to %s is in /proc/net/tcp or tcp6", local, remote))...)
}

// inTable finds the socket with these addresses in the text of /proc/net/tcp or tcp6.
func inTable(table io.Reader, local, remote netip.AddrPort) (socket, bool, error) {
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		field := strings.Fields(lines.Text())
		if len(field) < 10 {
			continue
		}
		from, err := ParseProcAddr(field[1])
		if err != nil || from != local {
			continue
		}
		if to, err := ParseProcAddr(field[2]); err != nil || to != remote {
			continue
		}
		state, err1 := strconv.ParseUint(field[3], 16, 8)
		uid, err2 := strconv.ParseUint(field[7], 10, 32)
		inode, err3 := strconv.ParseUint(field[9], 10, 64)
		if err := errors.Join(err1, err2, err3); err != nil {
			return socket{}, false, fmt.Errorf("read the table of sockets: %w", err)
		}
		return socket{uint8(state), int(uid), inode}, true, nil
	}
	return socket{}, false, lines.Err()
}

// ParseProcAddr reads an address as /proc/net/tcp has it, 0100007F:1F40: 32-bit words of the address in
// this machine's order (all that Go and Linux meet here are little-endian), then the port. An IPv4
// address in an IPv6 one is returned as IPv4.
func ParseProcAddr(s string) (netip.AddrPort, error) {
	host, port, _ := strings.Cut(s, ":")
	raw, err := hex.DecodeString(host)
	if err != nil || len(raw)%4 != 0 {
		return netip.AddrPort{}, fmt.Errorf("read address %q: want 32-bit words in hex", s)
	}
	for word := range slices.Chunk(raw, 4) {
		slices.Reverse(word)
	}
	ip, ok := netip.AddrFromSlice(raw)
	if !ok {
		return netip.AddrPort{}, fmt.Errorf("read address %q: neither IPv4 nor IPv6", s)
	}
	n, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("read address %q: %w", s, err)
	}
	return netip.AddrPortFrom(ip.Unmap(), uint16(n)), nil
}
