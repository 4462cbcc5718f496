package devices

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// Capacity is what this machine, or the container that we are in, has to give.
type Capacity struct {
	CPUs   float64
	Memory int64 // bytes
}

// Machine returns the capacity: the CPUs that we may run on and the machine's memory, each no more
// than the cgroups above us allow (cgroup v2 cpu.max and memory.max, or their v1 forms).
func Machine() (Capacity, error) { return machineAt("/") }

// machineAt reads the same below another root.
func machineAt(root string) (Capacity, error) {
	memory, err := memTotal(filepath.Join(root, "proc/meminfo"))
	if err != nil {
		return Capacity{}, fmt.Errorf("measure memory: %w", err)
	}
	c := Capacity{CPUs: float64(runtime.NumCPU()), Memory: memory}
	for _, dir := range cgroupsAbove(root) {
		if q, ok := quota(dir); ok {
			c.CPUs = min(c.CPUs, q)
		}
		for _, name := range []string{"memory.max", "memory.limit_in_bytes"} {
			if n, err := strconv.ParseInt(word(filepath.Join(dir, name), 0), 10, 64); err == nil && n > 0 {
				c.Memory = min(c.Memory, n)
			}
		}
	}
	return c, nil
}

func memTotal(path string) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if rest, ok := strings.CutPrefix(s.Text(), "MemTotal:"); ok {
			n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return n << 10, err
		}
	}
	return 0, fmt.Errorf("%s has no MemTotal", path)
}

// cgroupsAbove returns the folders of our cgroup and of those above it, as far as they can be seen,
// in every hierarchy that may limit us.
func cgroupsAbove(root string) []string {
	b, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return nil
	}
	mounts := map[string][]string{"": {"", "unified"}, "cpu": {"cpu"}, "cpu,cpuacct": {"cpu,cpuacct"}, "memory": {"memory"}}
	var out []string
	for line := range strings.SplitSeq(string(b), "\n") {
		part := strings.SplitN(line, ":", 3)
		if len(part) != 3 {
			continue
		}
		for _, mount := range mounts[part[1]] {
			base := filepath.Join(root, "sys/fs/cgroup", mount)
			for path := filepath.Clean("/" + part[2]); ; path = filepath.Dir(path) {
				out = append(out, filepath.Join(base, path))
				if path == "/" {
					break
				}
			}
		}
	}
	return out
}

// quota returns how many CPUs a cgroup may use, and false when it has no limit.
func quota(dir string) (float64, bool) {
	limit, period := word(filepath.Join(dir, "cpu.max"), 0), word(filepath.Join(dir, "cpu.max"), 1)
	if limit == "" {
		limit, period = word(filepath.Join(dir, "cpu.cfs_quota_us"), 0), word(filepath.Join(dir, "cpu.cfs_period_us"), 0)
	}
	l, err1 := strconv.ParseFloat(limit, 64)
	p, err2 := strconv.ParseFloat(period, 64)
	if err1 != nil || err2 != nil || l <= 0 || p <= 0 {
		return 0, false
	}
	return l / p, true
}

// word returns the i-th word of a small file, or nothing.
func word(path string, i int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	if words := strings.Fields(string(b)); i < len(words) {
		return words[i]
	}
	return ""
}
