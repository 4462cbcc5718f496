package proc

import (
	"net"
	"os"
	"testing"
)

func TestWhoListensOnAPortIsFoundAndNobodyElse(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"127.0.0.1:0", "[::]:0"} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		port := l.Addr().(*net.TCPAddr).Port
		who, found := ListenerOn(port)
		if !found || who.PID != os.Getpid() || who.UID != os.Geteuid() || !who.Below(os.Getpid()) || !who.Below(os.Getppid()) || who.Below(1<<22) {
			t.Errorf("%s: %+v, %t", l.Addr(), who, found)
		}
		// Somebody who is only connected to it listens on nothing.
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		from := c.LocalAddr().(*net.TCPAddr).Port
		if who, found := ListenerOn(from); found {
			t.Errorf("%+v does not listen on %d", who, from)
		}
		_ = c.Close()
		_ = l.Close()
		if who, found := ListenerOn(port); found {
			t.Errorf("%+v listens still", who)
		}
	}
}
