package proc

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

const lockSuffix = ".lock"

// Ports leases TCP ports of this machine. Two programs of ours never get the same port at one time, of whichever users
// they are. It may be used from many goroutines.
type Ports struct {
	folder  string
	choices []int

	mu   sync.Mutex
	held map[int]lease
}

// Ports opens the leases of the directory. Leases of programs that have ended are void. The error is
// about the folder of the leases.
func (d Dir) Ports() (*Ports, error) {
	folder, err := d.folder("ports")
	if err != nil {
		return nil, fmt.Errorf("open port leases: %w", err)
	}
	if err := d.VoidLeases(); err != nil {
		return nil, err
	}
	low, high := ephemeral()
	return &Ports{folder: folder, choices: choices(low, high), held: map[int]lease{}}, nil
}

// VoidLeases removes the leases of programs that have ended.
func (d Dir) VoidLeases() error {
	folder := filepath.Join(d.path, "ports")
	if err := d.check(); err != nil {
		return fmt.Errorf("void port leases: %w", err)
	}
	list, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("void port leases: %w", err)
	}
	for _, item := range list {
		if !strings.HasSuffix(item.Name(), lockSuffix) {
			continue
		}
		if l, err := Lock(filepath.Join(folder, item.Name())); err == nil { // left by a program that was killed
			_ = l.Unlock()
		}
	}
	return nil
}

// Lease leases n different ports that can be bound on all addresses and on loopback now. They lie
// outside the range from which the kernel takes ports for outgoing connections, unless that range
// leaves none. One that was just given back comes again only when all others have had their turn. A
// lease ends with Release or with the program.
func (p *Ports) Lease(n int) ([]int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	next, done, err := p.turn()
	if err != nil {
		return nil, fmt.Errorf("lease ports: %w", err)
	}
	var got []int
	for i := 0; i < len(p.choices) && len(got) < n; i++ {
		port := p.choices[(next+i)%len(p.choices)]
		if p.take(port) {
			got = append(got, port)
		}
		if len(got) == n {
			next = (next + i + 1) % len(p.choices)
		}
	}
	if len(got) < n {
		p.release(got)
		return nil, errors.Join(fmt.Errorf("lease %d ports: only %d are free", n, len(got)), done(next))
	}
	if err := done(next); err != nil {
		p.release(got)
		return nil, fmt.Errorf("lease ports: %w", err)
	}
	return got, nil
}

// Claim leases exactly that port, whoever may be bound to it: for a port that a worker of ours has
// already, or that the user chose. The error says who holds the lease.
func (p *Ports) Claim(port int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ours := p.held[port]; ours {
		return nil
	}
	l, err := Lock(p.file(port))
	if err != nil {
		return fmt.Errorf("lease port %d: %w", port, err)
	}
	name, _ := namePort(port) // who is bound to it has it in any case
	p.held[port] = lease{l, name}
	return nil
}

// Release gives ports back. Those that are not leased are ignored.
func (p *Ports) Release(ports ...int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.release(ports)
}

// Close gives everything back.
func (p *Ports) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for port, l := range p.held {
		l.end()
		delete(p.held, port)
	}
	return nil
}

func (p *Ports) release(ports []int) {
	for _, port := range ports {
		if l, ok := p.held[port]; ok {
			l.end()
			delete(p.held, port)
		}
	}
}

func (p *Ports) file(port int) string { return filepath.Join(p.folder, strconv.Itoa(port)+lockSuffix) }

func (p *Ports) take(port int) bool {
	if _, ours := p.held[port]; ours {
		return false
	}
	l, err := Lock(p.file(port))
	if err != nil {
		return false
	}
	name, free := namePort(port)
	if !free || !bindable(port) {
		lease{l, name}.end()
		return false
	}
	p.held[port] = lease{l, name}
	return true
}

// turn returns the index at which to look first, with the file locked that keeps it, so that a port
// just used by one program is not the next one's first choice. It must be ended with done.
func (p *Ports) turn() (next int, done func(next int) error, err error) {
	f, err := os.OpenFile(filepath.Join(p.folder, "next"), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return 0, nil, err
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		f.Close()
		return 0, nil, err
	}
	buf := make([]byte, 16)
	n, _ := f.ReadAt(buf, 0)
	next, err = strconv.Atoi(strings.TrimSpace(string(buf[:n])))
	if err != nil || next < 0 || next >= len(p.choices) {
		// A new directory. Another program with a new one of its own, perhaps another user's, leases
		// without knowing of us: it had better not begin where we do.
		next = rand.IntN(len(p.choices))
	}
	return next, func(next int) error { return errors.Join(write(f, strconv.Itoa(next)+"\n"), f.Close()) }, nil
}

// lowestPort and highestPort bound what is leased.
const lowestPort, highestPort = 20000, 65000

// choices are the ports outside [low, high], or all when that leaves too few for a job.
func choices(low, high int) []int {
	var outside, all []int
	for port := lowestPort; port <= highestPort; port++ {
		all = append(all, port)
		if port < low || port > high {
			outside = append(outside, port)
		}
	}
	if len(outside) < 100 {
		return all
	}
	return outside
}

// ephemeral is the range from which the kernel takes ports by itself (ip(7), ip_local_port_range).
func ephemeral() (low, high int) {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return 32768, 60999
	}
	if _, err := fmt.Sscan(string(text), &low, &high); err != nil {
		return 32768, 60999
	}
	return low, high
}

// bindable says whether the port is free on all addresses, on loopback, and on all addresses of IPv6
// where there is any.
func bindable(port int) bool {
	for _, at := range []struct{ network, host string }{{"tcp4", "0.0.0.0"}, {"tcp4", "127.0.0.1"}, {"tcp6", "::"}, {"tcp6", "::1"}} {
		l, err := net.Listen(at.network, net.JoinHostPort(at.host, strconv.Itoa(port)))
		if err != nil {
			if noAddress(err) || at.network == "tcp6" && !errors.Is(err, unix.EADDRINUSE) {
				continue // the machine does not have that address
			}
			return false
		}
		l.Close()
	}
	return true
}
