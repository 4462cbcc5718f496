package service

import (
	"io"
	"net"
	"sync"
	"testing"
)

// door stands between a service and the hub, so that a test can have the controller die: its socket
// refuses from then on, its connections break.
type door struct {
	path     string
	listener net.Listener
	mu       sync.Mutex
	conns    []net.Conn
	shut     bool
}

func openDoor(t *testing.T, path, to string) *door {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	d := &door{path: path, listener: l}
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("unix", to)
			if err != nil || !d.keep(in, out) {
				in.Close()
				continue
			}
			go func() { io.Copy(out, in); out.Close() }()
			go func() { io.Copy(in, out); in.Close() }()
		}
	}()
	t.Cleanup(d.slam)
	return d
}

func (d *door) keep(conns ...net.Conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.shut {
		return false
	}
	d.conns = append(d.conns, conns...)
	return true
}

// slam is the controller's death.
func (d *door) slam() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.shut = true
	d.listener.Close()
	for _, c := range d.conns {
		c.Close()
	}
}

// cut breaks every connection; new ones are let through.
func (d *door) cut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.conns {
		c.Close()
	}
	d.conns = nil
}
