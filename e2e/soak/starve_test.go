package soak

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vigil/e2e/rig"
	"vigil/internal/event"
	"vigil/internal/wire/httpapi"
)

// Busy loops at the highest priority take the CPUs away from workers at the lowest, and from everything
// else of the job. The workers are silent for longer than their limit, and have not failed.
//
// By itself the test takes one CPU, to which the workers bind themselves, for other tests run beside it;
// asked for more with VIGIL_STARVE it takes all, from the controller and the services too.
func TestWorkersWithoutACPUHaveNotFailed(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("SKIPPED: there is no python3 on this machine, so nobody was starved")
	}
	lasts := asked(t, starveVariable, 45*time.Second)
	var all, bound unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	if bound = all; os.Getenv(starveVariable) == "" {
		bound = lastOf(all)
	}
	job, gaps, limit := beginStarved(t, python, bound)
	runtime.LockOSThread() // the busy loops end with this thread, and it ends with the test
	hogs := takeCPUs(t, bound)
	job.Pause(lasts)
	noFailure(t, job)
	for _, hog := range hogs {
		_ = hog.Process.Kill()
		_ = hog.Wait()
	}
	advance(t, job, 30)
	noFailure(t, job)
	longest := longestGap(t, gaps)
	heard, _ := job.Events()
	starved, blind := 0, 0
	for _, e := range heard {
		switch e.Kind {
		case event.Starved:
			if starved++; starved <= 5 {
				t.Logf("%s: %s", e.At.Format("15:04:05"), e)
			}
		case event.Blind:
			blind++
		default: // nothing of interest here
		}
	}
	t.Logf("for %s: the longest silence was %.1fs, limit %s; told %d times that a worker is starved, %d times that nobody could listen", lasts, longest, limit, starved, blind)
	if err := syscall.Kill(job.PID(), syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	job.End(130)
	switch {
	case longest < limit.Seconds():
		t.Skipf("SKIPPED: nobody was silent for %s, for the kernel did not let busy loops of the highest priority take a CPU from the lowest", limit)
	case starved == 0:
		t.Error("nobody was said to be starved")
	}
}

// beginStarved begins a job whose workers can be starved, and returns it when their limit has been
// learned, with that limit and the file in which they note how long they were silent. The limit is the
// floor unless the machine is so busy that a step took more than a fifth of that.
func beginStarved(t *testing.T, python string, bound unix.CPUSet) (job *rig.Job, gaps string, limit time.Duration) {
	t.Helper()
	dir := rig.Folder(t)
	program, err := filepath.Abs("testdata/starve.py")
	if err != nil {
		t.Fatal(err)
	}
	file := fmt.Sprintf(`{name: starved, roles: {main: {command: [%q, %q], workers: 2, distributed: none, limits: {heartbeat: learned, floor: %s}}}}`, python, program, floor)
	if err := os.WriteFile(filepath.Join(dir, "job.yaml"), []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	gaps = filepath.Join(dir, "gaps")
	var cpus []string
	for cpu := range len(bound) * 64 {
		if bound.IsSet(cpu) {
			cpus = append(cpus, fmt.Sprint(cpu))
		}
	}
	job = rig.Begin(t, rig.Options{Workdir: dir, Environ: append(os.Environ(), "GAPS="+gaps, "CPUS="+strings.Join(cpus, ",")), Patience: patience, Look: time.Second,
		Args: []string{"--job", "job.yaml", "--use-health-check"}})
	advance(t, job, 30)
	roles, err := job.Roles()
	if err != nil {
		t.Fatal(err)
	}
	_, said, _ := strings.Cut(roles[0].Watched, "learned limit ")
	said, _, _ = strings.Cut(said, " (") // which gap it goes back to
	if limit, err = time.ParseDuration(said); err != nil || limit < floor {
		t.Fatalf("the limit is not the learned one: %s", roles[0].Watched)
	}
	return job, gaps, limit
}

// advance waits until every worker has made so many steps more.
func advance(t *testing.T, job *rig.Job, steps int64) {
	t.Helper()
	from := map[string]int64{}
	job.Eventually(fmt.Sprintf("%d more steps", steps), func() error {
		roles, err := job.Roles()
		if err != nil {
			return err
		}
		for _, w := range roles[0].Workers {
			if w.Step == nil {
				return fmt.Errorf("rank %d is silent", w.Rank)
			}
			if _, ok := from[w.Life]; !ok {
				from[w.Life] = *w.Step
			}
			if *w.Step < from[w.Life]+steps {
				return fmt.Errorf("rank %d is at step %d", w.Rank, *w.Step)
			}
		}
		return nil
	})
}

// noFailure checks that there is no incident and that nobody was begun again.
func noFailure(t *testing.T, job *rig.Job) {
	t.Helper()
	job.Eventually("an answer", func() error {
		var list httpapi.IncidentList
		if err := job.Get("/api/v1/incidents", &list); err != nil {
			return err
		}
		if len(list.Incidents) > 0 {
			t.Fatalf("a false failure: %+v", list.Incidents[0])
		}
		return nil
	})
}

// takeCPUs starts a busy loop of the highest priority on every CPU of the set, or where that is not
// allowed so many that they leave as little.
func takeCPUs(t *testing.T, bound unix.CPUSet) []*exec.Cmd {
	t.Helper()
	var hogs []*exec.Cmd
	hog := func() *exec.Cmd {
		cmd := exec.Command("sh", "-c", "while :; do :; done")
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setsid: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		hogs = append(hogs, cmd)
		return cmd
	}
	for cpu := range len(bound) * 64 {
		if !bound.IsSet(cpu) {
			continue
		}
		var one unix.CPUSet
		one.Set(cpu)
		first := hog()
		if err := unix.SchedSetaffinity(first.Process.Pid, &one); err != nil {
			t.Fatal(err)
		}
		// Where sessions share the CPUs (sched(7), autogroup), theirs is the priority that counts.
		_ = os.WriteFile(fmt.Sprintf("/proc/%d/autogroup", first.Process.Pid), []byte("-20"), 0o600)
		if err := unix.Setpriority(unix.PRIO_PROCESS, first.Process.Pid, -20); err == nil {
			continue
		}
		for range 30 {
			if err := unix.SchedSetaffinity(hog().Process.Pid, &one); err != nil {
				t.Fatal(err)
			}
		}
	}
	return hogs
}

// lastOf returns the last CPU of a set.
func lastOf(set unix.CPUSet) unix.CPUSet {
	var one unix.CPUSet
	for cpu := len(set)*64 - 1; cpu >= 0; cpu-- {
		if set.IsSet(cpu) {
			one.Set(cpu)
			break
		}
	}
	return one
}

// longestGap returns the longest silence that any worker has noted, in seconds.
func longestGap(t *testing.T, base string) float64 {
	t.Helper()
	longest := 0.0
	files, _ := filepath.Glob(base + ".*")
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for word := range strings.FieldsSeq(string(text)) {
			var gap float64
			if _, err := fmt.Sscan(word, &gap); err == nil {
				longest = max(longest, gap)
			}
		}
	}
	return longest
}
