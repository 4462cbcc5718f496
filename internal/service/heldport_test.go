package service

import (
	"net"
	"strings"
	"testing"

	"vigil/api"
	"vigil/internal/job"
	"vigil/internal/role"
)

// A worker that could not bind its port, because the kernel still keeps earlier connections there, has not failed by
// itself: the cause is the port's, whether it says so on either stream or by a report. Not so if it says something else, or
// if nobody holds the port, and not for ever.
// shows: FAULT-F4
func TestAWorkerThatCouldNotBindAPortThatLingersIsNotBlamed(t *testing.T) {
	t.Parallel()
	const no = "OSError: [Errno 98] Address already in use"
	for name, c := range map[string]struct {
		script string
		free   bool // nobody holds the port
		causes []role.Cause
	}{
		"by standard error":   {script: `echo "` + no + `" >&2; exit 1`, causes: []role.Cause{role.PortTaken, role.PortTaken, role.Exited}},
		"by standard output":  {script: `echo "listen EADDRINUSE: :::8000"; exit 1`, causes: []role.Cause{role.PortTaken}},
		"by a report":         {script: `VIGIL_TEST_AS=say $SELF "X_VIGIL_ERROR=` + no + `"`, causes: []role.Cause{role.PortTaken}},
		"for another reason":  {script: `echo "out of luck" >&2; exit 1`, causes: []role.Cause{role.Exited}},
		"nobody holds it":     {script: `echo "` + no + `" >&2; exit 1`, free: true, causes: []role.Cause{role.Exited}},
		"it ended by a fault": {script: `echo "` + no + `" >&2; kill -SEGV $$`, causes: []role.Cause{role.Exited}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			port := lingeringPort(t, c.free)
			r := workerOf(c.script)
			r.Workers, r.Ports = 1, []job.Port{{Name: "http", Number: int(port)}}
			s := enter(t, r)
			for i, cause := range c.causes {
				order := runOrder(i + 1)
				order.WorldSize, order.Workers = 1, []*api.Worker{{Attempt: 1, Ports: map[string]uint32{"http": port}}}
				s.must(&api.ToService{Order: &api.ToService_Run{Run: order}})
				f := s.ears.awaitFailure(t, i+1)
				if f = s.ears.failed()[i]; f.Cause != cause || (cause == role.PortTaken) != strings.Contains(f.Detail, "(http) is held by earlier connections (TIME_WAIT)") {
					t.Errorf("life %d failed by %s: %s; want %s", i+1, f.Cause, f.Detail, cause)
				}
				s.must(stop(&api.Stop{}))
			}
		})
	}
}

// lingeringPort returns a port on which a connection lingers that was closed by its side; or nothing, where it is free.
func lingeringPort(t *testing.T, free bool) uint32 {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := uint32(l.Addr().(*net.TCPAddr).Port)
	if free {
		return port
	}
	c, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	served, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_ = served.Close()
	_ = c.Close()
	return port
}
