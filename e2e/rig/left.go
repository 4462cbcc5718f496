package rig

import (
	"bytes"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"vigil/internal/role"
)

// Process is one of the job's: a service, or a worker and what it has started.
type Process struct {
	Environ []string
}

// Life returns the worker life whose mark the process bears; empty for a service.
func (p Process) Life() string {
	for _, one := range p.Environ {
		if life, ok := strings.CutPrefix(one, "VIGIL_LIFE="); ok {
			return life
		}
	}
	return ""
}

// Processes returns the job's processes by pid. Zombies have no environment, and so are none.
func (j *Job) Processes() map[int]Process {
	found := map[int]Process{}
	if j.UID == "" {
		return found
	}
	paths, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(text, []byte("VIGIL_LIFE="+j.UID+"/")) && !bytes.Contains(text, []byte("VIGIL_OPT_JOB_UID="+j.UID)) {
			continue // gone, of others, or of none
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
			found[pid] = Process{strings.Split(string(text), "\x00")}
		}
	}
	return found
}

// Service returns the process that serves a role; 0 if there is none.
func (j *Job) Service(name role.Name) int {
	for pid, p := range j.Processes() {
		if slices.Contains(p.Environ, "VIGIL_OPT_ROLE="+string(name)) {
			return pid
		}
	}
	return 0
}

// Left returns what there is of the job, in words: to be asked when it has ended.
func (j *Job) Left() []string {
	var left []string
	for pid, p := range j.Processes() {
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // gone meanwhile
		left = append(left, fmt.Sprintf("process %d %q of life %q", pid, name, p.Life()))
	}
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), "vigil-"+j.UID) {
			left = append(left, "cgroup "+path)
			return fs.SkipDir
		}
		return nil // what has gone meanwhile is not left
	})
	for _, pattern := range []string{filepath.Join(j.Dir, "run", "[^dlp]*"), filepath.Join(j.Dir, "run", "ports", "*.lock"), "/dev/shm/*" + j.UID + "*"} {
		files, _ := filepath.Glob(pattern)
		left = append(left, files...)
	}
	if c, err := net.DialTimeout("tcp", strings.TrimPrefix(j.URL, "http://"), time.Second); err == nil {
		c.Close()
		left = append(left, "a listener at "+j.URL)
	}
	return left
}
