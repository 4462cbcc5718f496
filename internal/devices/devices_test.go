package devices_test

import (
	"context"
	"errors"
	"fmt"
	"os"
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
		"more than an empty one shows":                  {o: devices.Options{GPUs: "1", Environ: []string{"CUDA_VISIBLE_DEVICES="}}, err: "find 1 GPUs: there are 0, since CUDA_VISIBLE_DEVICES shows none"},
		"one that an empty one hides":                   {o: devices.Options{GPUs: "0,", Environ: []string{"CUDA_VISIBLE_DEVICES=-1"}}, err: "find GPUs 0,: there is no device 0, there are 0, since CUDA_VISIBLE_DEVICES shows none"},
		"an inherited one ends at a negative number":    {o: devices.Options{Need: 9, Environ: []string{"CUDA_VISIBLE_DEVICES=2,-1,0"}}, want: "2 1"},
		"an inherited one that names what is not there": {o: devices.Options{Need: 1, Environ: []string{"CUDA_VISIBLE_DEVICES=7"}}, err: "take CUDA_VISIBLE_DEVICES=7 as the inventory: there is no device 7, there are 4 (0,1,2,3)"},
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
	inv, err := devices.All(t.Context(), devices.Options{})
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
	if _, err := devices.All(t.Context(), devices.Options{}); err == nil || !strings.Contains(err.Error(), "exit status 18: Failed to initialize NVML: Driver/library version mismatch") {
		t.Errorf("got %v", err)
	}
	smi(t, t.TempDir(), "echo 'No devices were found'; exit 6")
	if inv, err := devices.All(t.Context(), devices.Options{}); err != nil || len(inv.Devices) != 0 {
		t.Errorf("no devices: got %v, %v", inv, err)
	}
}

func TestANvidiaSMIThatHangsIsNotWaitedForForever(t *testing.T) {
	smi(t, t.TempDir(), "exec sleep 600")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := devices.All(ctx, devices.Options{}); !errors.Is(err, context.DeadlineExceeded) {
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
