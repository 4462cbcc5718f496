package devices_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"vigil/internal/devices"
)

// machine puts a stand-in nvidia-smi into PATH that shows four devices and the users given as
// "PID, UUID" lines, and returns a function that changes the users.
func machine(t *testing.T, users string) (setUsers func(string)) {
	t.Helper()
	dir := t.TempDir()
	setUsers = func(u string) {
		if err := os.WriteFile(filepath.Join(dir, "users.new"), []byte(u), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "users.new"), filepath.Join(dir, "users")); err != nil {
			t.Fatal(err)
		}
	}
	setUsers(users)
	smi(t, dir, fmt.Sprintf(`case "$1" in
--query-gpu=index,uuid,name,memory.total) cat <<E
0, GPU-aa00, NVIDIA H100 80GB HBM3, 81559 MiB
1, GPU-aa11, NVIDIA H100 80GB HBM3, 81559 MiB
2, GPU-bb22, NVIDIA H100 80GB HBM3, 81559 MiB
3, GPU-cc33, "NVIDIA H100, large", [N/A]
E
;;
--query-compute-apps=pid,gpu_uuid) cat %s/users ;;
*) echo "unknown query $1" >&2; exit 2 ;;
esac`, dir))
	return setUsers
}

func smi(t *testing.T, dir, script string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "nvidia-smi"), []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// shows: R60
func TestTheInventoryIsWhatIsThereAndWished(t *testing.T) {
	machine(t, "")
	for name, c := range map[string]struct {
		o    devices.Options
		want string // IDs and how many of them
		err  string
	}{
		"all, as many as the roles reserve":             {o: devices.Options{Need: 2}, want: "0,1,2,3 2"},
		"never more than there are":                     {o: devices.Options{Need: 9}, want: "0,1,2,3 4"},
		"any two":                                       {o: devices.Options{GPUs: "2", Need: 4}, want: "0,1,2,3 2"},
		"none":                                          {o: devices.Options{GPUs: "0", Need: 4}, want: "0,1,2,3 0"},
		"these in this order":                           {o: devices.Options{GPUs: "3,1"}, want: "3,1 2"},
		"one by its index":                              {o: devices.Options{GPUs: "2,"}, want: "2 1"},
		"one by its UUID":                               {o: devices.Options{GPUs: "GPU-bb22"}, want: "GPU-bb22 1"},
		"one by the beginning of it":                    {o: devices.Options{GPUs: "GPU-b"}, want: "GPU-b 1"},
		"a beginning of two":                            {o: devices.Options{GPUs: "GPU-aa"}, err: "find GPUs GPU-aa: GPU-aa may be GPU-aa00 or GPU-aa11"},
		"one that is not there":                         {o: devices.Options{GPUs: "1,4"}, err: "find GPUs 1,4: there is no device 4, there are 4 (0,1,2,3)"},
		"one twice under two names":                     {o: devices.Options{GPUs: "1,GPU-aa11"}, err: "find GPUs 1,GPU-aa11: device GPU-aa11 is named twice"},
		"more than there are":                           {o: devices.Options{GPUs: "5"}, err: "find 5 GPUs: there are 4 (0,1,2,3)"},
		"an inherited CUDA_VISIBLE_DEVICES":             {o: devices.Options{Need: 1, Environ: []string{"CUDA_VISIBLE_DEVICES=3,GPU-aa00"}}, want: "3,GPU-aa00 1"},
		"a choice from an inherited one":                {o: devices.Options{GPUs: "0,3", Environ: []string{"CUDA_VISIBLE_DEVICES=3,0"}}, want: "0,3 2"},
		"no choice beyond an inherited one":             {o: devices.Options{GPUs: "1,", Environ: []string{"CUDA_VISIBLE_DEVICES=3,0"}}, err: "find GPUs 1,: there is no device 1, there are 2 (3,0)"},
		"an inherited one that is empty":                {o: devices.Options{Need: 1, Environ: []string{"CUDA_VISIBLE_DEVICES="}}, want: " 0"},
		"an inherited one ends at a negative number":    {o: devices.Options{Need: 9, Environ: []string{"CUDA_VISIBLE_DEVICES=2,-1,0"}}, want: "2 1"},
		"an inherited one that names what is not there": {o: devices.Options{Environ: []string{"CUDA_VISIBLE_DEVICES=7"}}, err: "take CUDA_VISIBLE_DEVICES=7 as the inventory: there is no device 7, there are 4 (0,1,2,3)"},
		"an inherited part of a device":                 {o: devices.Options{Need: 1, Environ: []string{"CUDA_VISIBLE_DEVICES=MIG-1"}}, want: "MIG-1 1"},
		"fake ones, whatever is there":                  {o: devices.Options{Fake: 2, Need: 1, Environ: []string{"CUDA_VISIBLE_DEVICES=3"}}, want: "0,1 1"},
		"a choice of fake ones":                         {o: devices.Options{Fake: 8, GPUs: "4,5"}, want: "4,5 2"},
	} {
		t.Run(name, func(t *testing.T) {
			inv, err := devices.Find(t.Context(), c.o)
			if err != nil || c.err != "" {
				if fmt.Sprint(err) != c.err {
					t.Errorf("got error %v, want %q", err, c.err)
				}
				return
			}
			if got := fmt.Sprintf("%s %d", strings.Join(inv.IDs(), ","), inv.Want); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestADeviceIsDescribed(t *testing.T) {
	machine(t, "")
	inv, err := devices.Find(t.Context(), devices.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if d := inv.Devices[1]; d != (devices.Device{ID: "1", Index: "1", UUID: "GPU-aa11", Name: "NVIDIA H100 80GB HBM3", Memory: 81559 << 20}) {
		t.Errorf("got %+v", d)
	}
	if d := inv.Devices[3]; d.Name != "NVIDIA H100, large" || d.Memory != 0 {
		t.Errorf("got %+v", d)
	}
}

func TestAMachineWithoutNvidiaSMIHasNoDevices(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	inv, err := devices.Find(t.Context(), devices.Options{Need: 2})
	if err != nil || len(inv.Devices) != 0 || inv.Want != 0 {
		t.Errorf("got %+v, %v", inv, err)
	}
	inv, err = devices.Find(t.Context(), devices.Options{Need: 2, Environ: []string{"CUDA_VISIBLE_DEVICES=4,5"}})
	if err != nil || strings.Join(inv.IDs(), ",") != "4,5" {
		t.Errorf("an inherited inventory: got %+v, %v", inv, err)
	}
	if held, err := devices.Holders(t.Context(), []int{1}); err != nil || len(held) != 0 {
		t.Errorf("holders: got %v, %v", held, err)
	}
}

func TestANvidiaSMIThatFailsIsAnErrorThatSaysSo(t *testing.T) {
	smi(t, t.TempDir(), "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18")
	if _, err := devices.Find(t.Context(), devices.Options{}); err == nil || !strings.Contains(err.Error(), "exit status 18: Failed to initialize NVML: Driver/library version mismatch") {
		t.Errorf("got %v", err)
	}
	smi(t, t.TempDir(), "echo 'No devices were found'; exit 6")
	if inv, err := devices.Find(t.Context(), devices.Options{}); err != nil || len(inv.Devices) != 0 {
		t.Errorf("no devices: got %v, %v", inv, err)
	}
}

func TestANvidiaSMIThatHangsIsNotWaitedForForever(t *testing.T) {
	smi(t, t.TempDir(), "exec sleep 600")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := devices.Find(ctx, devices.Options{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

func TestHoldersAreThoseOfThePidsThatUseADevice(t *testing.T) {
	machine(t, fmt.Sprintf("%d, GPU-aa00\n999999999, GPU-aa11\n[N/A], GPU-aa11\n", os.Getpid()))
	held, err := devices.Holders(t.Context(), []int{os.Getpid(), 5})
	if err != nil || len(held) != 1 || held[0].UUID != "GPU-aa00" || held[0].Command == "" {
		t.Errorf("got %+v, %v", held, err)
	}
	all, err := devices.Users(t.Context())
	if err != nil || len(all) != 2 || all[1].String() != "pid 999999999" {
		t.Errorf("got %+v, %v", all, err)
	}
}

func find(t *testing.T, o devices.Options) devices.Inventory {
	t.Helper()
	inv, err := devices.Find(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return inv
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

// shows: R60
func TestTwoJobsNeverShareADevice(t *testing.T) {
	machine(t, "")
	dir := filepath.Join(t.TempDir(), "devices")
	first := take(t, find(t, devices.Options{GPUs: "2"}), devices.ClaimOptions{Dir: dir, Job: "a-00000001"})
	second := take(t, find(t, devices.Options{Need: 2}), devices.ClaimOptions{Dir: dir, Job: "b-00000002"})
	if got := strings.Join(first.IDs(), ",") + " " + strings.Join(second.IDs(), ","); got != "0,1 2,3" {
		t.Errorf("they have %s", got)
	}
	// The same device under its other name.
	_, err := devices.Take(t.Context(), find(t, devices.Options{GPUs: "GPU-bb22"}), devices.ClaimOptions{Dir: dir, Job: "c-00000003"})
	want := fmt.Sprintf("claim 1 devices: 0 are free: device GPU-bb22 is locked by job b-00000002 (pid %d)", os.Getpid())
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	take(t, find(t, devices.Options{GPUs: "GPU-bb22"}), devices.ClaimOptions{Dir: dir, Job: "c-00000003"})
}

func TestAClaimThatFailsHoldsNothing(t *testing.T) {
	machine(t, "")
	dir := t.TempDir()
	take(t, find(t, devices.Options{GPUs: "3,"}), devices.ClaimOptions{Dir: dir, Job: "a-00000001"})
	if _, err := devices.Take(t.Context(), find(t, devices.Options{GPUs: "4"}), devices.ClaimOptions{Dir: dir, Job: "b-00000002"}); err == nil {
		t.Fatal("four of three were claimed")
	}
	take(t, find(t, devices.Options{GPUs: "0,1,2"}), devices.ClaimOptions{Dir: dir, Job: "c-00000003"})
}

func TestStrangersAreNamedAndRefused(t *testing.T) {
	machine(t, "999999999, GPU-aa00\n")
	inv := find(t, devices.Options{GPUs: "0,1"})
	_, err := devices.Take(t.Context(), inv, devices.ClaimOptions{Dir: t.TempDir(), Job: "a-00000001"})
	var busy *devices.Busy
	if !errors.As(err, &busy) || busy.Error() != "claim 2 devices: 1 are free: device 0 is used by pid 999999999" {
		t.Errorf("got %v", err)
	}
	ours := func(pid int) bool { return pid == 999999999 }
	take(t, inv, devices.ClaimOptions{Dir: t.TempDir(), Job: "a-00000001", Ours: ours})
	c := take(t, find(t, devices.Options{GPUs: "2"}), devices.ClaimOptions{Dir: t.TempDir(), Job: "a-00000001"})
	if got := strings.Join(c.IDs(), ","); got != "1,2" {
		t.Errorf("any two are %s, want those that nobody uses", got)
	}
}

func TestDevicesThatStrangersUseAreWaitedFor(t *testing.T) {
	slow(t)
	setUsers := machine(t, "999999999, GPU-aa00\n")
	inv := find(t, devices.Options{GPUs: "0,"})
	said := 0
	c := take(t, inv, devices.ClaimOptions{Dir: t.TempDir(), Job: "a-00000001", Wait: time.Minute,
		Say: func(error) { said++; setUsers("") }})
	if said != 1 || len(c.Devices) != 1 {
		t.Errorf("said %d times, has %v", said, c.IDs())
	}
	setUsers("999999999, GPU-aa00\n")
	_, err := devices.Take(t.Context(), inv, devices.ClaimOptions{Dir: t.TempDir(), Job: "a-00000001", Wait: time.Millisecond})
	if err == nil || !strings.Contains(err.Error(), "waited 1ms: claim 1 devices") {
		t.Errorf("got %v", err)
	}
}

// TestMain holds a claim in a process of its own when a test asks for it.
func TestMain(m *testing.M) {
	if dir := os.Getenv("HOLD_DEVICES_IN"); dir != "" {
		inv, _ := devices.Find(context.Background(), devices.Options{Fake: 1, Need: 1})
		c, err := devices.Take(context.Background(), inv, devices.ClaimOptions{Dir: dir, Job: "other-00000001"})
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		child := exec.Command("sleep", "600")
		if os.Getenv("HOLD_BY") == "child" {
			child.ExtraFiles = c.Files()
		}
		if err := child.Start(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(child.Process.Pid)
		_, _ = bufio.NewReader(os.Stdin).ReadByte()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// hold starts the process, returns its child and a function that kills it and waits.
func hold(t *testing.T, dir, by string) (child *os.Process, end func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "HOLD_DEVICES_IN="+dir, "HOLD_BY="+by)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	var pid int
	if _, scan := fmt.Sscan(line, &pid); err != nil || scan != nil {
		t.Fatalf("the holder said %q, %v", line, err)
	}
	child, _ = os.FindProcess(pid)
	t.Cleanup(func() { _ = child.Kill(); _ = stdin.Close() })
	return child, func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }
}

func TestALockEndsWithTheProcessThatHoldsIt(t *testing.T) {
	dir := t.TempDir()
	_, end := hold(t, dir, "self")
	inv := find(t, devices.Options{Fake: 1, Need: 1})
	_, err := devices.Take(t.Context(), inv, devices.ClaimOptions{Dir: dir, Job: "a-00000001"})
	if err == nil || !strings.Contains(err.Error(), "locked by job other-00000001 (pid ") {
		t.Errorf("got %v", err)
	}
	end()
	take(t, inv, devices.ClaimOptions{Dir: dir, Job: "a-00000001"})
}

func TestALockThatAChildInheritedOutlivesItsParentAndIsKnownToItsJob(t *testing.T) {
	dir := t.TempDir()
	_, end := hold(t, dir, "child")
	end()
	inv := find(t, devices.Options{Fake: 1, Need: 1})
	if _, err := devices.Take(t.Context(), inv, devices.ClaimOptions{Dir: dir, Job: "a-00000001"}); err == nil {
		t.Error("another job took it")
	}
	c := take(t, inv, devices.ClaimOptions{Dir: dir, Job: "other-00000001"})
	if len(c.Devices) != 1 {
		t.Errorf("its own job has %v", c.IDs())
	}
}

// slow skips a test that takes real time where only the quick ones are wanted (go test -short).
func slow(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("it takes real time: not with -short")
	}
}
