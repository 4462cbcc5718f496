package controller

import (
	"log/slog"
	"os/exec"
	"testing"
	"testing/synctest"

	"vigil/internal/launcher/local"
	"vigil/internal/proc"
	"vigil/internal/wire/rpc"
)

// shows: A49
func TestWhileAServiceIsBeingStartedNoOtherOfItsPlaceIsAdmitted(t *testing.T) {
	keeper, err := proc.NewKeeper(proc.Options{Cgroups: proc.NoCgroups})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = keeper.Close() })
	launcher := local.New(local.Options{Keeper: keeper, JobUID: "tiny-01234567", LogDir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	t.Cleanup(func() { _ = launcher.Close(t.Context()) })
	sleeper := exec.Command("sleep", "300")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sleeper.Process.Kill(); _ = sleeper.Wait() })
	who, err := proc.Identify(sleeper.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	service, err := launcher.Adopt("critic", 0, 1, who)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		id, known := rpc.ServiceID{Role: "critic"}, make(chan struct{})
		w := &crew{members: map[rpc.ServiceID]*member{}, launching: map[rpc.ServiceID]chan struct{}{id: known}}
		ask := func(pid int) chan error {
			said := make(chan error, 1)
			go func() { said <- w.admit(rpc.Registration{ID: id, PID: pid}) }()
			return said
		}
		started, stranger := ask(who.PID), ask(who.PID+1)
		synctest.Wait()
		if len(started)+len(stranger) > 0 {
			t.Error("it is answered before it is known who was started")
		}
		w.mu.Lock()
		w.members[id] = &member{id: id, service: service}
		delete(w.launching, id)
		w.mu.Unlock()
		close(known)
		if err := <-started; err != nil {
			t.Errorf("the one that was started is refused: %v", err)
		}
		if err := <-stranger; err == nil {
			t.Error("one that an earlier controller has started is admitted in its place")
		}
	})
}

// A seat of a dead service is locked for a moment by whoever sweeps it: that one is no service of the place.
func TestOnlyAServiceOfThePlaceMakesRoom(t *testing.T) {
	keeper, err := proc.NewKeeper(proc.Options{Cgroups: proc.NoCgroups})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = keeper.Close() })
	runtime, err := proc.OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	c := &Controller{uid: "tiny-01234567", log: slog.New(slog.DiscardHandler), ground: &ground{runtime: runtime}}
	launcher := local.New(local.Options{Keeper: keeper, JobUID: c.uid, LogDir: t.TempDir(), Log: c.log})
	t.Cleanup(func() { _ = launcher.Close(t.Context()) })
	w := &crew{Controller: c, launcher: launcher}
	id := rpc.ServiceID{Role: "critic"}
	for _, one := range []struct {
		name    string
		environ []string
		goes    bool
	}{
		{"a stranger", nil, false},
		{"a service of another run", []string{"VIGIL_OPT_JOB_UID=tiny-76543210", "VIGIL_OPT_ROLE=critic", "VIGIL_OPT_INDEX=0"}, false},
		{"a service of another place", []string{"VIGIL_OPT_JOB_UID=tiny-01234567", "VIGIL_OPT_ROLE=critic", "VIGIL_OPT_INDEX=1"}, false},
		{"a service of the place", []string{"VIGIL_OPT_JOB_UID=tiny-01234567", "VIGIL_OPT_ROLE=critic", "VIGIL_OPT_INDEX=0"}, true},
	} {
		t.Run(one.name, func(t *testing.T) {
			who := sit(t, runtime, proc.SeatOf(c.uid, "critic", 0), one.environ...)
			if err := w.evict(t.Context(), id, 1); err != nil {
				t.Error(err)
			}
			if lives := who.Alive(); lives == one.goes {
				t.Errorf("it lives: %t", lives)
			}
		})
	}
}
