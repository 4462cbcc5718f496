package soak

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"vigil/internal/role"
	"vigil/internal/wire/httpapi"
)

const (
	doorVariable = "SOAK_DOOR" // where the door reads what is to be done
	phase        = "soak"      // the phase that a program enters which says that it is well and is not
)

// hit is something done that may be a failure.
type hit struct {
	role   role.Name
	causes []role.Cause // one of which its incident has
	at     time.Time
	found  *httpapi.Incident
}

// kind is a way to break a job.
type kind struct {
	name  string
	least int // incidents that follow
	does  func(*soak, *fault) error
}

var (
	ended   = []role.Cause{role.Exited}
	lost    = []role.Cause{role.Exited, role.Unreachable} // its socket refuses, which may be seen first
	raised  = []role.Cause{role.Exited, role.Reported}
	hangs   = []role.Cause{role.Silent}
	stuck   = []role.Cause{role.Stuck, role.Silent}
	stopped = []role.Cause{role.Silent, role.Unreachable}
	// What fails while it is being repaired may be called a repair that did not succeed.
	amid = []role.Cause{role.Exited, role.Reported, role.NoStart, role.Unrepaired}
)

// kinds are those that a job survives, or recovers from, today.
var kinds = []kind{
	{"exception", 1, throughDoor(raised, "raise", "the loss is NaN")},
	{"exit code", 1, throughDoor(ended, "exit", "3")},
	{"SIGKILL", 1, signalled(syscall.SIGKILL, ended)},
	{"SIGSEGV", 1, signalled(syscall.SIGSEGV, ended)},
	{"SIGTERM", 1, signalled(syscall.SIGTERM, raised)},
	{"SIGSTOP", 1, signalled(syscall.SIGSTOP, hangs)},
	{"deadlock", 1, throughDoor(hangs, "deadlock", "")},
	{"deadlock that says it is well", 1, throughDoor(stuck, "beat", phase)},
	{"slow step", 0, throughDoor(nil, "slow", "2")},
	{"output flood", 0, throughDoor(nil, "flood", "6000000")},
	{"memory over the limit", 1, (*soak).overLimit},
	{"escaped daemon", 1, (*soak).escapes},
	{"service killed", 1, service(syscall.SIGKILL, lost)},
	{"service stopped", 1, service(syscall.SIGSTOP, stopped)},
	{"controller stopped", 0, (*soak).deaf},
	{"a worker killed while the controller is stopped", 1, (*soak).deafAndKilled},
	{"two at once", 1, (*soak).two},
	{"one more during the repair", 1, (*soak).amidRepair},
}

// victim draws a worker that runs.
func (s *soak) victim() httpapi.Worker {
	s.t.Helper()
	var all []httpapi.Worker
	s.job.Eventually("workers that run", func() error {
		roles, err := s.job.Roles()
		all = nil
		for _, r := range roles {
			for _, w := range r.Workers {
				if w.PID > 1 {
					all = append(all, w)
				}
			}
		}
		if err == nil && len(all) == 0 {
			err = errors.New("there are none")
		}
		return err
	})
	return all[s.chance.IntN(len(all))]
}

// roleOf reads UID/ROLE/INC/RANK/ATTEMPT.
func roleOf(w httpapi.Worker) role.Name { return role.Name(strings.Split(w.Life, "/")[1]) }

// kill sends a signal to a worker if it is still that worker's process.
func (s *soak) kill(w httpapi.Worker, sig syscall.Signal) error {
	if s.job.Processes()[w.PID].Life() != w.Life {
		return fmt.Errorf("%s has ended", w.Life)
	}
	return syscall.Kill(w.PID, sig)
}

// hits notes what is about to be done to a worker.
func (s *soak) hits(f *fault, w httpapi.Worker, causes []role.Cause) {
	f.on = append(f.on, w.Life)
	if causes != nil {
		f.hits = append(f.hits, hit{role: roleOf(w), causes: causes, at: time.Now()})
	}
}

func signalled(sig syscall.Signal, causes []role.Cause) func(*soak, *fault) error {
	return func(s *soak, f *fault) error {
		w := s.victim()
		s.hits(f, w, causes)
		return s.kill(w, sig)
	}
}

// throughDoor lets a program do something to itself.
func throughDoor(causes []role.Cause, verb, value string) func(*soak, *fault) error {
	return func(s *soak, f *fault) error {
		w := s.victim()
		s.hits(f, w, causes)
		f.again = func() error { return s.door(w, verb, value) }
		return f.again()
	}
}

func (s *soak) door(w httpapi.Worker, verb, value string) error {
	part := strings.Split(w.Life, "/")
	path := filepath.Join(s.options.Workdir, part[1]+"."+part[3])
	if err := os.WriteFile(path, []byte(verb+" "+value), 0o600); err != nil {
		return err
	}
	return s.kill(w, syscall.SIGUSR1)
}

func service(sig syscall.Signal, causes []role.Cause) func(*soak, *fault) error {
	return func(s *soak, f *fault) error {
		w := s.victim()
		s.hits(f, w, causes)
		pid := s.job.Service(roleOf(w))
		if pid == 0 {
			return fmt.Errorf("%s has no service", roleOf(w))
		}
		return syscall.Kill(pid, sig)
	}
}

// escapes leaves a process in a session of its own behind.
func (s *soak) escapes(f *fault) error {
	w := s.victim()
	if err := s.door(w, "daemon", ""); err != nil {
		return err
	}
	s.job.Eventually("the daemon runs", func() error {
		for pid, p := range s.job.Processes() {
			if text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); p.Life() == w.Life && strings.Contains(string(text), "trap ''") && strings.HasPrefix(string(text), "sh\x00-c\x00trap") {
				return nil
			}
		}
		return errors.New("it does not")
	})
	s.hits(f, w, ended)
	return s.kill(w, syscall.SIGKILL)
}

// memoryRoot is where memory cgroups of version 1 lie. With version 2 a worker that is moved leaves the
// leaf that vigil made for it, which nobody but a test does.
const memoryRoot = "/sys/fs/cgroup/memory"

// overLimit lets a worker take more memory than it is given.
func (s *soak) overLimit(f *fault) error {
	w := s.victim()
	group := filepath.Join(memoryRoot, fmt.Sprintf("soak-%s-%d", s.job.UID, len(s.faults)))
	if err := os.Mkdir(group, 0o755); err != nil {
		return errNotHere{fmt.Sprintf("no memory cgroup of version 1 can be made: %v", err)}
	}
	s.groups = append(s.groups, group)
	for _, set := range [][2]string{{"memory.swappiness", "0"}, {"memory.limit_in_bytes", "300M"}, {"cgroup.procs", fmt.Sprint(w.PID)}} {
		if err := os.WriteFile(filepath.Join(group, set[0]), []byte(set[1]), 0o644); err != nil {
			return err
		}
	}
	s.hits(f, w, ended)
	return s.door(w, "eat", "1000000000")
}

// errNotHere says why something cannot be done on this machine.
type errNotHere struct{ why string }

func (e errNotHere) Error() string { return e.why }

// deaf stops the controller for a while.
func (s *soak) deaf(f *fault) error {
	d := 10*time.Second + time.Duration(s.chance.IntN(10_000))*time.Millisecond
	f.on = append(f.on, fmt.Sprintf("for %s", d.Round(time.Second)))
	if err := syscall.Kill(s.job.PID(), syscall.SIGSTOP); err != nil {
		return err
	}
	s.job.Pause(d)
	return syscall.Kill(s.job.PID(), syscall.SIGCONT)
}

func (s *soak) deafAndKilled(f *fault) error {
	w := s.victim()
	if err := syscall.Kill(s.job.PID(), syscall.SIGSTOP); err != nil {
		return err
	}
	s.job.Pause(time.Duration(s.chance.IntN(8000)) * time.Millisecond)
	s.hits(f, w, raised)
	err := s.kill(w, syscall.SIGKILL)
	s.job.Pause(time.Duration(s.chance.IntN(8000)) * time.Millisecond)
	return errors.Join(err, syscall.Kill(s.job.PID(), syscall.SIGCONT))
}

// two breaks two workers at once, or one in two ways.
func (s *soak) two(f *fault) error {
	a, b := s.victim(), s.victim()
	s.hits(f, a, raised)
	s.hits(f, b, raised)
	err := s.kill(a, syscall.SIGKILL)
	_ = s.kill(b, syscall.SIGSEGV) // the same, or ended by the first
	return err
}

// amidRepair breaks a worker, and again one while that is repaired.
func (s *soak) amidRepair(f *fault) error {
	a := s.victim()
	s.hits(f, a, raised)
	if err := s.kill(a, syscall.SIGKILL); err != nil {
		return err
	}
	s.job.Pause(time.Duration(s.chance.IntN(1500)) * time.Millisecond)
	b := s.victim()
	s.hits(f, b, amid)
	_ = s.kill(b, syscall.SIGKILL) // it may have been ended meanwhile
	return nil
}
