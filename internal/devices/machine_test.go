package devices

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// lay lays a file below root.
func lay(t *testing.T, root, path, text string) {
	t.Helper()
	full := filepath.Join(root, path)
	if err := os.MkdirAll(filepath.Dir(full), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(full, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestCapacityIsNoMoreThanTheCgroupsAllow(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  Capacity
	}{
		"no limits":                   {map[string]string{"proc/self/cgroup": "0::/\n"}, Capacity{float64(runtime.NumCPU()), 8 << 30}},
		"no cgroups":                  {nil, Capacity{float64(runtime.NumCPU()), 8 << 30}},
		"v2, limited above":           {map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "50000 100000\n", "sys/fs/cgroup/a/memory.max": "1073741824\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000\n", "sys/fs/cgroup/a/b/memory.max": "max\n"}, Capacity{0.5, 1 << 30}},
		"v1":                          {map[string]string{"proc/self/cgroup": "4:memory:/m\n1:cpu,cpuacct:/c\n", "sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_quota_us": "25000\n", "sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_period_us": "100000\n", "sys/fs/cgroup/memory/m/memory.limit_in_bytes": "2147483648\n"}, Capacity{0.25, 2 << 30}},
		"v1 without a limit":          {map[string]string{"proc/self/cgroup": "4:memory:/\n1:cpu:/\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, Capacity{float64(runtime.NumCPU()), 8 << 30}},
		"a limit above what there is": {map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "99999900000 100000\n", "sys/fs/cgroup/memory.max": "99999999999999\n"}, Capacity{float64(runtime.NumCPU()), 8 << 30}},
		"our own cgroup out of sight": {map[string]string{"proc/self/cgroup": "0::/../../other\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}, Capacity{0.5, 8 << 30}},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			lay(t, root, "proc/meminfo", "MemTotal:        8388608 kB\nMemFree:  1 kB\n")
			for path, text := range c.files {
				lay(t, root, path, text)
			}
			got, err := machineAt(root)
			if err != nil || got != c.want {
				t.Errorf("got %+v, %v, want %+v", got, err, c.want)
			}
		})
	}
}

func TestThisMachineHasCPUsAndMemory(t *testing.T) {
	c, err := Machine()
	if err != nil || c.CPUs <= 0 || c.Memory <= 0 {
		t.Errorf("got %+v, %v", c, err)
	}
}
