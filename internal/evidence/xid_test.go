package evidence

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestXidsBlameTheDeviceTheProgramOrNobodyAsNvidiasCatalogueDoes(t *testing.T) {
	for _, tt := range []struct {
		numbers                  []int
		hardware, ill, contained bool
	}{
		{[]int{13, 31, 43, 45, 69, 137}, false, false, false},
		{[]int{63, 92, 121, 154}, false, false, false},
		{[]int{46, 48, 62, 64, 74, 79, 95, 109, 119, 120, 140, 158}, true, true, false},
		{[]int{94}, true, true, true},
		{[]int{32, 44, 145, 149, 155, 999}, true, false, false},
	} {
		for _, n := range tt.numbers {
			if x := (Xid{Number: n}); x.Hardware() != tt.hardware || x.Ill() != tt.ill || x.Contained() != tt.contained {
				t.Errorf("%d: hardware %v, ill %v, contained %v", n, x.Hardware(), x.Ill(), x.Contained())
			}
		}
	}
}

func TestTheLinesOfOldAndNewDriversAreRead(t *testing.T) {
	for line, want := range map[string]string{
		"NVRM: Xid (PCI:0000:3B:00): 79, pid=4711, name=python, GPU has fallen off the bus.":          "79 0000:3b:00 4711 python",
		"NVRM: Xid (PCI:0000:3b:00): 31, pid='11', name='pt_main_thread', Ch 0000001b":                "31 0000:3b:00 11 pt_main_thread",
		"NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off":         "79 0000:3b:00 0 ",
		"NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 94, pid=7194, name=python3, Contained: CE User Channel": "94 0000:3b:00 7194 python3",
		"NVRM: Xid (0000:01:00): 13, 0005 00000000 0000502d 00000104":                                 "13 0000:01:00 0 ",
		"NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 17 (0x004505c6)":        "149 0018:01:00 0 ",
		"NVRM: Xid (PCI:0000:3b:00): 119, pid=5, Timeout after 6s":                                    "119 0000:3b:00 5 ",
	} {
		x, ok := parseXid("3,7,5000000,-;" + line + "\n")
		if got := fmt.Sprint(x.Number, " ", x.Device, " ", x.PID, " ", x.Name); !ok || got != want || x.Line != line || x.At != 5*time.Second {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}

func TestAnXidNamesAProcessByItsPidAndItsName(t *testing.T) {
	self := os.Getpid()
	comm := strings.TrimSpace(read(fmt.Sprintf("/proc/%d/comm", self)))
	for _, tt := range []struct {
		x    Xid
		want bool
	}{
		{Xid{PID: self, Name: comm}, true}, {Xid{PID: self}, true},
		{Xid{PID: self, Name: "another"}, false}, {Xid{PID: self + 1, Name: comm}, false}, {Xid{Name: comm}, false},
	} {
		if got := tt.x.Names(self); got != tt.want {
			t.Errorf("%+v: %v", tt.x, got)
		}
	}
	if (Xid{}).Names(0) {
		t.Error("no process is process 0")
	}
}

func TestAFollowerTellsOnlyWhatIsNewAndWholeLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kmsg")
	add := func(text string) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	add("3,1,1,-;NVRM: Xid (PCI:0000:3b:00): 1, first\n")
	f, err := Taker{KernelLog: path}.Follow()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	next := func() (numbers []int) {
		for _, x := range f.Next() {
			numbers = append(numbers, x.Number)
		}
		return numbers
	}
	if got := next(); !slices.Equal(got, []int{1}) {
		t.Errorf("at first %v", got)
	}
	add(strings.Repeat("6,2,2,-;eth0: link up\n", 2000) + "3,3,3,-;NVRM: Xid (PCI:0000:3b:00): 2, second\n3,4,4,-;NVRM: Xid (PCI:0000:3b")
	if got := next(); !slices.Equal(got, []int{2}) {
		t.Errorf("then %v", got)
	}
	add(":00): 3, third\n")
	if got := next(); !slices.Equal(got, []int{3}) {
		t.Errorf("at last %v", got)
	}
	if got := next(); len(got) > 0 {
		t.Errorf("again %v", got)
	}
	add(strings.Repeat("x", 100_000) + "\n3,5,5,-;NVRM: Xid (PCI:0000:3b:00): 4, behind what is no record\n")
	if got := next(); !slices.Equal(got, []int{4}) {
		t.Errorf("behind a long line %v", got)
	}
	if _, err := (Taker{KernelLog: path + ".none"}).Follow(); err == nil || !strings.Contains(err.Error(), "follow the kernel's log: open ") {
		t.Errorf("a log that is not there: %v", err)
	}
}

func TestDevicesAreFoundOnTheBusByIndexAndUUID(t *testing.T) {
	dir := t.TempDir()
	for address, uuid := range map[string]string{"0000:3b:00.0": "GPU-aa00", "0000:AF:00.0": "GPU-bb11", "0001:01:00.0": "GPU-bb22"} {
		if err := os.Mkdir(filepath.Join(dir, address), 0o700); err != nil {
			t.Fatal(err)
		}
		text := "Model: \t\t NVIDIA H100 80GB HBM3\nGPU UUID: \t " + uuid + "\nBus Location: \t " + address + "\n"
		if err := os.WriteFile(filepath.Join(dir, address, "information"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		devices, want []string
	}{
		{[]string{"1"}, []string{"0000:af:00"}}, {[]string{"GPU-bb22", "0"}, []string{"0000:3b:00", "0001:01:00"}},
		{[]string{"GPU-aa"}, []string{"0000:3b:00"}}, {[]string{"7", "MIG-aa00", "GPU-cc"}, nil}, {nil, nil},
	} {
		if got := Addresses(dir, tt.devices); !slices.Equal(got, tt.want) {
			t.Errorf("%q: %q, want %q", tt.devices, got, tt.want)
		}
	}
	if got := Addresses(filepath.Join(dir, "none"), []string{"0"}); got != nil {
		t.Errorf("without a driver %q", got)
	}
}
