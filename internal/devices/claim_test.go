package devices_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"vigil/internal/devices"
)

// patience bounds every wait of these tests.
const patience = time.Minute

// stranger is the uid of another user.
const stranger = 65534

// until waits until something holds.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	limit := time.After(patience)
	for !holds() {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-limit:
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

func take(t *testing.T, inv devices.Inventory, o devices.ClaimOptions) *devices.Claim {
	t.Helper()
	c, err := devices.Take(t.Context(), inv, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// pretend returns n devices that only this test knows, so that no other run of it on this machine meets them.
func pretend(t *testing.T, n, want int) devices.Inventory {
	t.Helper()
	return find(t, devices.Options{Fake: n, Need: want, Space: t.TempDir()})
}

// refused asks for devices that cannot be had and returns why.
func refused(t *testing.T, inv devices.Inventory, job string) *devices.Busy {
	t.Helper()
	c, err := devices.Take(t.Context(), inv, devices.ClaimOptions{Job: job})
	busy := new(devices.Busy)
	if !errors.As(err, &busy) {
		if err == nil {
			err = fmt.Errorf("%s has %v", job, c.IDs())
			_ = c.Close()
		}
		t.Fatalf("want a refusal: %v", err)
	}
	return busy
}

func want(t *testing.T, inv devices.Inventory, n int) devices.Inventory {
	t.Helper()
	inv, err := inv.Wish("", n)
	if err != nil {
		t.Fatal(err)
	}
	return inv
}

// shows: R60
func TestTwoJobsNeverShareADevice(t *testing.T) {
	all := pretend(t, 4, 2)
	first := take(t, all, devices.ClaimOptions{Job: "a-00000001"})
	second := take(t, all, devices.ClaimOptions{Job: "b-00000002"})
	if got := strings.Join(first.IDs(), ",") + " " + strings.Join(second.IDs(), ","); got != "0,1 2,3" {
		t.Errorf("they have %s", got)
	}
	busy := refused(t, want(t, all, 1), "c-00000003")
	if h := busy.Taken[2].Holders[0]; h.Job != "b-00000002" || h.PID != os.Getpid() || h.UID != os.Geteuid() || time.Since(h.Since) > patience {
		t.Errorf("the third device is said to be held by %v", h)
	}
	if text := busy.Error(); !strings.Contains(text, fmt.Sprintf("devices 2,3 are locked by job b-00000002, pid %d (", os.Getpid())) || !strings.Contains(text, ", since 20") {
		t.Errorf("it says %s", text)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	take(t, all, devices.ClaimOptions{Job: "c-00000003"})
}

func TestADeviceHasOneLockUnderAllItsNames(t *testing.T) {
	bus := own(t, "")
	take(t, find(t, devices.Options{GPUs: "2,"}), devices.ClaimOptions{Job: "a-00000001"})
	refused(t, find(t, devices.Options{GPUs: bus[2]}), "b-00000002")
	take(t, find(t, devices.Options{GPUs: bus[3]}), devices.ClaimOptions{Job: "b-00000002"})
}

// own puts a stand-in nvidia-smi into PATH with eight devices that only this test knows, and returns their UUIDs. users
// are lines "PID, UUID".
func own(t *testing.T, users string) []string {
	t.Helper()
	dir := t.TempDir()
	var uuids []string
	list := ""
	for i := range 8 {
		uuids = append(uuids, fmt.Sprintf("GPU-%d-%d-%s", i, os.Getpid(), filepath.Base(filepath.Dir(dir))))
		list += fmt.Sprintf("%d, %s, Stand-In, 80000 MiB\n", i, uuids[i])
	}
	for name, text := range map[string]string{"list": list, "users": users} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	smi(t, dir, fmt.Sprintf(`case "$1" in --query-gpu=*) cat %[1]s/list;; *) cat %[1]s/users;; esac`, dir))
	return uuids
}

func TestAClaimThatFailsHoldsNothing(t *testing.T) {
	all := pretend(t, 4, 4)
	c := take(t, want(t, all, 1), devices.ClaimOptions{Job: "a-00000001"})
	refused(t, all, "b-00000002")
	take(t, want(t, all, 3), devices.ClaimOptions{Job: "c-00000003"})
	_ = c.Close()
}

func TestForeignProcessesAreNamedAndRefused(t *testing.T) {
	uuids := own(t, "")
	users := fmt.Sprintf("%d, %s\n999999999, %s\n", os.Getpid(), uuids[0], uuids[1])
	if err := os.WriteFile(filepath.Join(strings.SplitN(os.Getenv("PATH"), ":", 2)[0], "users"), []byte(users), 0o600); err != nil {
		t.Fatal(err)
	}
	inv := find(t, devices.Options{GPUs: "0,1,2"})
	busy := refused(t, inv, "a-00000001")
	if text := busy.Error(); busy.Free != 1 || !strings.Contains(text, "device 1 is used by pid 999999999") || !strings.Contains(text, fmt.Sprintf("device 0 is used by pid %d (devices.test, ", os.Getpid())) || !strings.Contains(text, fmt.Sprintf("uid %d, since 20", os.Geteuid())) {
		t.Errorf("got %s", text)
	}
	_ = take(t, inv, devices.ClaimOptions{Job: "a-00000001", Ours: func(int) bool { return true }}).Close()
	c := take(t, find(t, devices.Options{GPUs: "2"}), devices.ClaimOptions{Job: "a-00000001"})
	if got := strings.Join(c.IDs(), ","); got != "2,3" {
		t.Errorf("any two are %s, want those that nobody uses", got)
	}
}

func TestDevicesThatForeignProcessesUseAreWaitedFor(t *testing.T) {
	uuids := own(t, "")
	users := filepath.Join(strings.SplitN(os.Getenv("PATH"), ":", 2)[0], "users")
	if err := os.WriteFile(users, []byte("999999999, "+uuids[0]+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	inv := find(t, devices.Options{GPUs: "0,"})
	var said []string
	c := take(t, inv, devices.ClaimOptions{Job: "a-00000001", Wait: patience, Say: func(b *devices.Busy) {
		said = append(said, b.Place())
		_ = os.Remove(users)
		_ = os.WriteFile(users, nil, 0o600)
	}})
	if len(said) != 1 || len(c.Devices) != 1 || said[0] != "place 1 of 1 in the queue for 1 device; waits for pid 999999999" {
		t.Errorf("said %q, has %v", said, c.IDs())
	}
	_, err := devices.Take(t.Context(), inv, devices.ClaimOptions{Job: "b-00000002", Wait: time.Millisecond})
	if err == nil || !strings.Contains(err.Error(), "waited 1ms: claim 1 of 1 devices") {
		t.Errorf("got %v", err)
	}
}

func TestAToolThatFailsWhileOneWaitsIsSaidAndAskedAgain(t *testing.T) {
	uuids := own(t, "")
	dir := strings.SplitN(os.Getenv("PATH"), ":", 2)[0]
	users := filepath.Join(dir, "users")
	if err := os.WriteFile(users, []byte("999999999, "+uuids[0]+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	inv := find(t, devices.Options{GPUs: "0,"})
	var said []string
	c := take(t, inv, devices.ClaimOptions{Job: "a-00000001", Wait: patience, Say: func(b *devices.Busy) {
		said = append(said, b.Place())
		if b.Trouble == nil { // cat fails from now on
			_ = os.Remove(users)
		} else {
			_ = os.WriteFile(users, nil, 0o600)
		}
	}})
	if len(said) != 2 || len(c.Devices) != 1 || !strings.Contains(said[1], "waits for word of who uses them: list users of devices: ask nvidia-smi --query-compute-apps") {
		t.Errorf("said %q, has %v", said, c.IDs())
	}
}

func TestALockEndsWithTheProcessThatHoldsIt(t *testing.T) {
	all := pretend(t, 1, 1)
	h := begin(t, os.Geteuid(), job{Space: all.Space(), Fake: 1, Want: 1, Job: "other-00000001"})
	h.hasWithPID("0")
	if got := refused(t, all, "a-00000001").Taken[0].Holders; len(got) != 1 || got[0].PID != h.pid || got[0].Job != "other-00000001" {
		t.Errorf("held by %v", got)
	}
	h.kill()
	take(t, all, devices.ClaimOptions{Job: "a-00000001"})
}

func TestALockThatAChildInheritedOutlivesItsParentAndIsKnownToItsJob(t *testing.T) {
	all := pretend(t, 1, 1)
	h := begin(t, os.Geteuid(), job{Space: all.Space(), Fake: 1, Want: 1, Job: "other-00000001", Child: "sleep"})
	child := h.hasWithPID("0")
	h.kill()
	if got := refused(t, all, "a-00000001").Taken[0].Holders[0]; !got.Ended || !strings.Contains(got.String(), "its workers live on") {
		t.Errorf("held by %v", got)
	}
	next := take(t, all, devices.ClaimOptions{Job: "other-00000001"})
	if got := refused(t, all, "a-00000001").Taken[0].Holders; len(got) != 2 {
		t.Errorf("held by %v", got)
	}
	// The child of the earlier one ends, and nobody gets in between.
	_ = syscall.Kill(child, syscall.SIGKILL)
	until(t, "the next controller has it alone", func() bool {
		got := refused(t, all, "a-00000001").Taken[0].Holders
		return len(got) == 1 && got[0].PID == os.Getpid()
	})
	until(t, "it has taken the lock over, and gives it to its services", func() bool { return len(next.Files()) == 2 })
	_ = next.Close()
	take(t, all, devices.ClaimOptions{Job: "a-00000001"})
}

func TestAServiceWithoutControllerIsNamedAsTheHolder(t *testing.T) {
	all := pretend(t, 1, 1)
	h := begin(t, os.Geteuid(), job{Space: all.Space(), Fake: 1, Want: 1, Job: "other-00000001", Child: "tend"})
	child := h.hasWithPID("0")
	h.kill()
	until(t, "the service is named", func() bool {
		got := refused(t, all, "a-00000001").Taken[0].Holders[0]
		return got.PID == child && !got.Ended
	})
}

// shows: FAULT-G5
func TestTwoUsersNeverGetTheSameDevice(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("another user is made by root only")
	}
	all := pretend(t, 2, 1)
	his := begin(t, stranger, job{Space: all.Space(), Fake: 2, Want: 1, Job: "his-00000001"})
	his.hasWithPID("0")
	mine := take(t, all, devices.ClaimOptions{Job: "mine-00000002"})
	if got := strings.Join(mine.IDs(), ","); got != "1" {
		t.Errorf("root has %s beside the other user's 0", got)
	}
	busy := refused(t, all, "more-00000003")
	h := busy.Taken[0].Holders[0]
	if h.UID != stranger || h.PID != his.pid || h.Since.IsZero() || h.Job != "his-00000001" {
		t.Errorf("the other user's device is held by %+v", h)
	}
	also := begin(t, stranger, job{Space: all.Space(), Fake: 2, Want: 1, Job: "his-00000004"})
	if text := also.says("claim 1 of 2 devices: 0 free: "); !strings.Contains(text, fmt.Sprintf("device 1 is locked by job mine-00000002, pid %d (root, uid 0, since ", os.Getpid())) {
		t.Errorf("the other user is told %s", text)
	}
}

// shows: FAULT-G5
func TestWhatIsPlantedBlocksNobodyAndWhoBlocksIsNamed(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("another user is made by root only")
	}
	all := pretend(t, 1, 1)
	key := all.Keys()[0]
	asked := "vigil/wait/" + key + "/0/planted/1/first"
	for _, name := range []string{ // of a process that lives and answers nobody
		"vigil/hold/" + key + "/0123456789abcdef/0/planted/free_it", asked,
		"x\n0: 2 0 00010000 0001 01 42 @vigil/hold/" + key + "/0123456789abcdef/0/f/f",
		"vigil/hold/" + key + "/junk", "vigil/wait/" + key + "/-/-/-/-/-", "vigil/lock/",
	} {
		begin(t, stranger, job{Stolen: name}).says("has <nil> ")
	}
	jam := begin(t, stranger, job{Stolen: "vigil/turn"}) // another test may have it for a moment
	jam.says("has ")
	c := take(t, all, devices.ClaimOptions{Job: "mine-00000002"})
	_ = c.Close()
	jam.kill()

	// The lock itself, without a word: its user is named, and root sees the pid.
	thief := begin(t, stranger, job{Stolen: "vigil/lock/" + key})
	thief.says("has <nil> ")
	h := refused(t, all, "mine-00000002").Taken[0].Holders[0]
	if h.UID != stranger || h.PID != thief.pid {
		t.Errorf("the lock is said to be held by %+v", h)
	}
	thief.kill()
	_ = take(t, all, devices.ClaimOptions{Job: "mine-00000002"}).Close()

	// One that says that he is of our own job, and has it for long: the kernel knows better.
	liar := begin(t, stranger, job{Answers: all.HoldName("mine-00000002")})
	liar.says("has <nil> ")
	h = refused(t, all, "mine-00000002").Taken[0].Holders[0]
	if h.UID != stranger || h.PID != liar.pid {
		t.Errorf("said to be held by %+v", h)
	}
	liar.kill()

	// One that says that he asked before all others has not asked before he was there.
	waiting := begin(t, 0, job{Space: all.Space(), Fake: 1, Want: 1, Job: "first-00000001", Wait: true})
	waiting.hasWithPID("0")
	second := begin(t, 0, job{Space: all.Space(), Fake: 1, Want: 1, Job: "second-00000002", Wait: true})
	second.says("place 1 of 1 ")
	begin(t, stranger, job{Answers: asked}).says("has address already in use ")
	pusher := begin(t, stranger, job{Answers: strings.Replace(asked, "planted", "pusher", 1)})
	pusher.says("has <nil> ")
	waiting.kill()
	second.sees("has 0 ")
}
