package devices

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// recorded answers as a tool would, from files of testdata by what is asked.
func recorded(t *testing.T, files map[string]string) asker {
	return func(_ context.Context, args ...string) ([]byte, error) {
		for asked, file := range files {
			if strings.HasSuffix(strings.Join(args, " "), asked) {
				return os.ReadFile(filepath.Join("testdata", file))
			}
		}
		t.Errorf("nobody has recorded %q", args)
		return nil, errors.New("not recorded")
	}
}

func TestWhatROCmSMISays(t *testing.T) {
	ask := recorded(t, map[string]string{"--json": "rocm-list.json", "--showpidgpus": "rocm-pids.txt"})
	got, err := amd{}.list(t.Context(), ask)
	want := []Device{
		{ID: "0", Index: "0", UUID: "GPU-9b3a6f2e51d7c840", Name: "AMD Instinct MI300X OAM", Memory: 206141652992},
		{ID: "2", Index: "2", UUID: "GPU-1f/2", Name: "0x0c34"},
		{ID: "3", Index: "3", UUID: "GPU-1f/3"},
		{ID: "10", Index: "10", UUID: "amd-0000:65:00.0", Name: "Radeon RX Vega", Memory: 17163091968},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	users, err := amd{}.users(t.Context(), ask)
	if want := []User{{PID: 4711, UUID: "GPU-9b3a6f2e51d7c840"}, {PID: 4711, UUID: "GPU-1f/2"}, {PID: 815, UUID: "amd-0000:65:00.0"}}; err != nil || !reflect.DeepEqual(users, want) {
		t.Errorf("users: got %+v, %v", users, err)
	}
}

func TestWhatNPUSMISays(t *testing.T) {
	for name, c := range map[string]struct {
		ask   asker
		want  []Device
		users []User
	}{
		"one chip on a card": {recorded(t, map[string]string{"info -m": "npu-map.txt", "info": "npu-info.txt"}), []Device{
			{ID: "0", Index: "0", UUID: "npu-0000:C1:00.0", Name: "Ascend 910B3", Memory: 65536 << 20},
			{ID: "1", Index: "1", UUID: "npu-0000:C2:00.0", Name: "Ascend 910B3", Memory: 65536 << 20, Ill: "Alarm"},
		}, []User{{PID: 2488494, UUID: "npu-0000:C2:00.0"}, {PID: 2488495, UUID: "npu-0000:C2:00.0"}}},
		"two chips on a card": {recorded(t, map[string]string{"info -m": "npu-map-phy.txt", "info": "npu-info-phy.txt"}), []Device{
			{ID: "0", Index: "0", UUID: "npu-0000:9D:00.0", Name: "Ascend910", Memory: 65536 << 20},
			{ID: "1", Index: "1", UUID: "npu-0000:9F:00.0", Name: "Ascend910", Memory: 65536 << 20},
		}, []User{{PID: 1444275, UUID: "npu-0000:9F:00.0"}}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ascend{}.list(t.Context(), c.ask)
			if err != nil || !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %+v, %v", got, err)
			}
			users, err := ascend{}.users(t.Context(), c.ask)
			if err != nil || !reflect.DeepEqual(users, c.users) {
				t.Errorf("users: got %+v, %v", users, err)
			}
		})
	}
}

// Where HIP and ROCR are both set, HIP counts what ROCR has left.
func TestInheritedDevicesOfAMD(t *testing.T) {
	all := []Device{{ID: "0", Index: "0", UUID: "GPU-aa"}, {ID: "1", Index: "1", UUID: "GPU-bb"}, {ID: "2", Index: "2", UUID: "GPU-cc"}}
	for _, c := range []struct{ environ, variable, want string }{
		{"", HIP, "0=GPU-aa 1=GPU-bb 2=GPU-cc"},
		{"HIP_VISIBLE_DEVICES=2,0", HIP, "2=GPU-cc 0=GPU-aa"},
		{"ROCR_VISIBLE_DEVICES=2,GPU-bb", ROCR, "2=GPU-cc GPU-bb=GPU-bb"},
		{"ROCR_VISIBLE_DEVICES=2,1 HIP_VISIBLE_DEVICES=1", HIP, "1=GPU-bb"},
		{"CUDA_VISIBLE_DEVICES=1", HIP, "1=GPU-bb"},
		{"CUDA_VISIBLE_DEVICES=1 HIP_VISIBLE_DEVICES=0", HIP, "0=GPU-aa"},
	} {
		environ := strings.Fields(c.environ)
		got, err := amd{}.inherited(all, environ)
		var said []string
		for _, d := range got {
			said = append(said, d.ID+"="+d.UUID)
		}
		if variable := (amd{}).variable(environ); err != nil || strings.Join(said, " ") != c.want || variable != c.variable {
			t.Errorf("%s: got %v in %s, %v", c.environ, said, variable, err)
		}
	}
}

// onPath puts a program into PATH, before what is there.
func onPath(t *testing.T, name, script string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

func TestAToolThatPrintsJunkOrHangsIsBoundedAndNamed(t *testing.T) {
	onPath(t, "npu-smi", "exit 0")
	onPath(t, "nvidia-smi", "exit 0")
	for script, want := range map[string]string{
		"exec yes junk":            "ask rocm-smi --showuniqueid --showproductname --showbus --showmeminfo vram --json: it printed more than 4 MiB",
		`printf '\033[31mno\n'`:    "read answer of rocm-smi: no JSON in it: [31mno",
		`echo '{"card0": [1, 2]}'`: "read answer of rocm-smi: json: cannot unmarshal",
		"echo sick >&2; exit 7":    "exit status 7: sick",
		"kill -9 $$":               "signal: killed: it printed nothing",
		`echo '{"card0": {"a":'`:   "read answer of rocm-smi: unexpected EOF",
	} {
		onPath(t, "rocm-smi", script)
		_, err := All(t.Context(), Options{})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%s: got %v, want %s", script, err, want)
		}
	}
	// What it has started ends with it, and nobody waits for the pipes that it holds.
	mark := filepath.Join(t.TempDir(), "pid")
	onPath(t, "rocm-smi", "sleep 600 & echo $! >"+mark+"; wait")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := All(ctx, Options{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	var pid int
	text, _ := os.ReadFile(mark)
	if _, err := fmt.Sscan(string(text), &pid); err != nil {
		t.Skip("it was stopped before it had begun")
	}
	limit := time.After(time.Minute)
	for {
		if _, ok := startOf(pid); !ok {
			return
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-limit:
			t.Fatal("what it has started lives")
		}
	}
}

func FuzzToolOutput(f *testing.F) {
	for _, name := range []string{"rocm-list.json", "rocm-pids.txt", "npu-map.txt", "npu-map-phy.txt", "npu-info.txt", "npu-info-phy.txt"} {
		text, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte("0, GPU-1, \"NVIDIA H100, large\", 81559 MiB\n1, GPU-2, x, [N/A]\n"))
	f.Add([]byte("4711, GPU-1\n[N/A], GPU-2\n"))
	f.Fuzz(func(t *testing.T, said []byte) {
		check := func(all []Device) {
			for _, d := range all {
				if d.Index == "" || d.UUID == "" || d.Memory < 0 || strings.ContainsAny(d.Name+d.UUID+d.Index+d.Ill, "\x00\x1b\n") {
					t.Errorf("a device %+v", d)
				}
			}
		}
		nv, _ := parseNvidiaList(said)
		check(nv)
		_, _ = parseNvidiaUsers(said)
		rocm, _ := parseROCmList(said)
		check(rocm)
		for i, d := range rocm {
			for _, o := range rocm[:i] {
				if o.UUID == d.UUID || o.Index == d.Index {
					t.Errorf("two devices %+v and %+v", o, d)
				}
			}
		}
		for _, u := range parseROCmPIDs(said) {
			if u.PID <= 0 {
				t.Errorf("a user %+v", u)
			}
		}
		npu, _ := ascend{}.list(t.Context(), func(context.Context, ...string) ([]byte, error) { return said, nil })
		check(npu)
		_, users := parseNPUInfo(said)
		for _, u := range users {
			if u.pid <= 0 {
				t.Errorf("a user %+v", u)
			}
		}
	})
}

func FuzzNames(f *testing.F) {
	h := hold{key: digest("a"), job: digest("b"), since: time.Unix(1, 0), nonce: "n", title: "train-00000001"}
	w := wait{key: digest("a"), asked: 42, nonce: "n", want: 3, title: "train-00000001"}
	f.Add(h.name())
	f.Add(w.name())
	f.Add("00000000eaf3dae0: 00000003 00000000 00010000 0001 01  1057 @" + h.name())
	f.Fuzz(func(t *testing.T, name string) {
		if h, ok := parseHold(name); ok && (title(h.title) != h.title || h.since.Unix() < 0) {
			t.Errorf("%+v", h)
		}
		if w, ok := parseWait(name); ok && (title(w.title) != w.title || w.want < 1 || w.asked < 0) {
			t.Errorf("%+v", w)
		}
		_, _ = parseEntry(name)
		_ = parseDiag([]byte(name))
	})
	if got, ok := parseHold(h.name()); !ok || got != h {
		f.Errorf("%+v", got)
	}
	if got, ok := parseWait(w.name()); !ok || got != w {
		f.Errorf("%+v", got)
	}
	long := hold{key: digest("a"), job: digest("b"), since: time.Now(), nonce: nonce(), title: strings.Repeat("x", 200)}
	if got, ok := parseHold(long.name()); !ok || len(long.name()) > 107 || got.job != long.job {
		f.Errorf("%+v", got)
	}
}
