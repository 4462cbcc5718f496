package service

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"vigil/api"
	"vigil/internal/devices"
	"vigil/internal/wire/rpc"
)

// driver is a stand-in nvidia-smi that lists whom it is told.
type driver struct {
	t   *testing.T
	dir string
}

// withDriver puts a stand-in into the service's PATH. It must be called before the start.
func withDriver(s *stage) *driver {
	d := &driver{s.t, s.t.TempDir()}
	d.list(0)
	script := fmt.Sprintf("#!/bin/sh\necho \"$1\" >>%[1]s/asked\ncat %[1]s/users\n", d.dir)
	if err := os.WriteFile(filepath.Join(d.dir, "nvidia-smi"), []byte(script), 0o755); err != nil {
		s.t.Fatal(err)
	}
	s.env = append(s.env, "PATH="+d.dir+":"+os.Getenv("PATH"))
	return d
}

// list has it list that pid; 0 for nobody.
func (d *driver) list(pid int) {
	d.t.Helper()
	users := ""
	if pid > 0 {
		users = fmt.Sprintf("%d, GPU-aa00\n1, GPU-bb11\n", pid)
	}
	next := filepath.Join(d.dir, "next")
	if err := os.WriteFile(next, []byte(users), 0o644); err != nil {
		d.t.Fatal(err)
	}
	if err := os.Rename(next, filepath.Join(d.dir, "users")); err != nil {
		d.t.Fatal(err)
	}
}

// asked is how often it was asked who holds devices.
func (d *driver) asked() int {
	src, _ := os.ReadFile(filepath.Join(d.dir, "asked"))
	return bytes.Count(src, []byte("--query-compute-apps="))
}

// runOnDevices starts two workers that have a device each, and returns their pids.
func runOnDevices(s *stage) []int {
	s.t.Helper()
	order := runOrder(1)
	for i, w := range order.Workers {
		w.Devices = []string{fmt.Sprint(i)}
	}
	return runsOrder(s, order)
}

func TestAStopWaitsUntilTheDriverHoldsNoDeviceForTheDead(t *testing.T) {
	t.Parallel()
	s := newStage(t, workerOf(orderly))
	d := withDriver(s)
	s.start()
	s.joined()
	pids := runOnDevices(s)
	d.list(pids[1])
	stopped := make(chan error, 1)
	go func() {
		_, err := s.call(stop(&api.Stop{}))
		stopped <- err
	}()
	eventually(t, "the driver to be asked again", func() bool { return d.asked() > 1 })
	gone(t, pids...)
	select {
	case err := <-stopped:
		t.Fatalf("stopped (%v) while a device was held", err)
	default:
	}
	d.list(0)
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

func TestADeviceThatIsHeldForEverIsSaidAndAskedForAgain(t *testing.T) {
	slow(t)
	t.Parallel()
	s := newStage(t, workerOf(orderly))
	d := withDriver(s)
	s.start()
	s.joined()
	pids := runOnDevices(s)
	d.list(pids[0])
	_, err := s.call(stop(&api.Stop{}))
	want := fmt.Sprintf("device GPU-aa00 still held by pid %d", pids[0])
	if refused := new(rpc.OrderError); !errors.As(err, &refused) || !slices.Equal(refused.Held, []string{want}) {
		t.Errorf("the stop ends with %v, want it to be held by %q", err, want)
	}
	gone(t, pids...)
	d.list(0)
	s.must(stop(&api.Stop{}))
}

func TestTheDriverIsNotAskedAboutWorkersWithoutDevices(t *testing.T) {
	t.Parallel()
	s := newStage(t, workerOf(orderly))
	d := withDriver(s)
	s.start()
	s.joined()
	pids := runsOrderly(s)
	d.list(pids[0])
	s.must(stop(&api.Stop{}))
	if n := d.asked(); n > 0 {
		t.Errorf("the driver was asked %d times", n)
	}
}

func TestADriverThatDoesNotAnswerHoldsNothingUp(t *testing.T) {
	t.Parallel()
	s := newStage(t, workerOf(orderly))
	d := withDriver(s)
	if err := os.WriteFile(filepath.Join(d.dir, "nvidia-smi"), []byte("#!/bin/sh\necho sick >&2\nexit 9\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	s.start()
	s.joined()
	runOnDevices(s)
	s.must(stop(&api.Stop{}))
	if !strings.Contains(s.said.String(), "nobody says whether the workers' devices are free") {
		t.Error("the service does not say that it does not know")
	}
}

func TestAPidThatAnotherProcessHasByNowHoldsNothingOfOurs(t *testing.T) {
	if held := heldDevices([]devices.User{{PID: os.Getpid(), UUID: "GPU-aa00"}}); len(held) > 0 {
		t.Errorf("held %q", held)
	}
}
