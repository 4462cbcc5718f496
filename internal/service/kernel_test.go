package service

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"vigil/api"
	"vigil/internal/evidence"
	"vigil/internal/role"
)

// kmsg is a fake kernel's log.
type kmsg struct {
	t    *testing.T
	path string
}

func newKmsg(t *testing.T) kmsg {
	t.Helper()
	k := kmsg{t, filepath.Join(t.TempDir(), "kmsg")}
	k.say(evidence.SinceBoot()-time.Minute, "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus before this life.")
	return k
}

// say appends a record.
func (k kmsg) say(at time.Duration, text string) {
	k.t.Helper()
	f, err := os.OpenFile(k.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		k.t.Fatal(err)
	}
	defer f.Close()
	if _, err := fmt.Fprintf(f, "3,1,%d,-;%s\n", at.Microseconds(), text); err != nil {
		k.t.Fatal(err)
	}
}

// enterWithDevices starts a service that reads a fake kernel's log, and two ranks with a device each.
func enterWithDevices(t *testing.T, k kmsg, script string) *stage {
	t.Helper()
	r := workerOf(script)
	r.Env[playAs] = "say"
	s := newStage(t, r)
	s.env = []string{"VIGIL_OPT_KERNEL_LOG=" + k.path}
	s.start()
	s.joined()
	order := runOrder(1)
	for i, w := range order.Workers {
		w.Devices = []string{fmt.Sprint("GPU-", i)}
	}
	s.must(&api.ToService{Order: &api.ToService_Run{Run: order}})
	s.awaitLog(1, 0, "up")
	s.awaitLog(1, 1, "up")
	return s
}

func TestAWorkerWhoseDeviceFailsIsReportedWhileItStillRuns(t *testing.T) {
	t.Parallel()
	k := newKmsg(t)
	s := enterWithDevices(t, k, "echo up; while :; do sleep 1000; done")
	pid := s.ears.awaitState(t, 1, role.WorkerReady).PID
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		t.Fatal(err)
	}
	name := strings.TrimSpace(string(comm))
	now := evidence.SinceBoot()
	for _, innocent := range []string{
		fmt.Sprintf("NVRM: Xid (PCI:0000:3b:00): 13, pid=%d, name=%s, Graphics Exception", pid, name),
		fmt.Sprintf("NVRM: Xid (PCI:0000:3b:00): 63, pid=%d, name=%s, Row Remapper: New row marked for remapping", pid, name),
		fmt.Sprintf("NVRM: Xid (PCI:0000:3b:00): 48, pid=%d, name=another, of a process in another container", pid),
		fmt.Sprintf("NVRM: Xid (PCI:0000:3b:00): 149, pid=%d, name=%s, NETIR_BER_EVENT Nonfatal", pid, name),
		"NVRM: Xid (PCI:0000:af:00): 79, pid='<unknown>', name=<unknown>, a device that is not ours",
	} {
		k.say(now, innocent)
	}
	ill := fmt.Sprintf("NVRM: Xid (PCI:0000:3b:00): 94, pid=%d, name=%s, Contained: SM (0x1)", pid, name)
	k.say(now, ill)
	f := s.ears.awaitFailure(t, 1)
	if f.Cause != role.Hardware || f.Detail != ill || f.Life != s.life(1, 1) || f.Exit != nil || !strings.HasSuffix(f.Log, "/critic/1/1.1/stderr.log") || time.Since(f.At) > patience {
		t.Errorf("failure %+v", f)
	}
	k.say(now, strings.Replace(ill, "94", "48", 1))
	peer := s.ears.awaitState(t, 0, role.WorkerReady).PID
	k.say(now, strings.ReplaceAll(ill, fmt.Sprint("pid=", pid), fmt.Sprint("pid=", peer)))
	if f := s.ears.awaitFailure(t, 2); f.Life.Rank != 0 {
		t.Errorf("told more than once: %+v", f)
	}
	s.must(stop(&api.Stop{AfterFailure: true, Incident: "7", Cause: string(role.Hardware)}))
	gone(t, pid, peer)
}

func TestWithoutAKernelLogNothingIsSaidAndNothingFails(t *testing.T) {
	slow(t)
	t.Parallel()
	k := newKmsg(t)
	if err := os.Remove(k.path); err != nil {
		t.Fatal(err)
	}
	s := enterWithDevices(t, k, `echo up; [ $RANK = 0 ] || { sleep 1; "$SELF" X_VIGIL_STEP=41 exit:0; }; exec sleep 1000`)
	s.ears.await(t, "a heartbeat", func() bool { return len(s.ears.beats) > 0 })
	if said := s.said.String(); strings.Contains(said, "level=WARN") || len(s.ears.failed()) > 0 {
		t.Errorf("said %s", said)
	}
}

func TestAnXidHitsTheWorkerWhoseDeviceItIsOrWhoseProcessItNamesAndOnlySinceItRuns(t *testing.T) {
	t.Parallel()
	e := &exposed{since: time.Minute, addresses: []string{"0000:3b:00"}}
	s, w := &Service{}, &worker{}
	for _, tt := range []struct {
		name string
		x    evidence.Xid
		want bool
	}{
		{"its device", evidence.Xid{Number: 79, Device: "0000:3b:00", At: time.Minute}, true},
		{"its device, and a process of somebody else", evidence.Xid{Number: 95, Device: "0000:3b:00", PID: 1 << 22, At: time.Minute}, true},
		{"another device", evidence.Xid{Number: 79, Device: "0000:af:00", At: time.Minute}, false},
		{"before it ran", evidence.Xid{Number: 79, Device: "0000:3b:00", At: time.Minute - 1}, false},
		{"contained to nobody whom it names", evidence.Xid{Number: 94, Device: "0000:3b:00", At: time.Minute}, false},
	} {
		if got := s.hits(tt.x, w, e); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}
