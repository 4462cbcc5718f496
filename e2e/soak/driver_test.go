package soak

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"vigil/e2e/rig"
	"vigil/internal/role"
	"vigil/internal/wire/httpapi"
)

// soak is one job that is broken over and over.
type soak struct {
	t       *testing.T
	chance  *rand.Rand
	options rig.Options
	job     *rig.Job
	lead    role.Name
	deck    []kind
	faults  []*fault
	groups  []string // cgroups that faults have made
	nowhere map[string]bool
}

// fault is one kind, done.
type fault struct {
	kind  kind
	on    []string // lives, or words
	hits  []hit
	again func() error // does it once more: a program may swallow an exception
	began time.Time
	over  time.Time // zero: not yet
}

func (f *fault) String() string { return f.kind.name + " of " + strings.Join(f.on, " and ") }

func begin(t *testing.T, chance *rand.Rand, set setting) *soak {
	t.Helper()
	s := &soak{t: t, chance: chance, options: set.options(t, patience, 200*time.Millisecond), lead: set.lead, nowhere: map[string]bool{}}
	s.job = rig.Begin(t, s.options)
	t.Cleanup(func() { _ = syscall.Kill(s.job.PID(), syscall.SIGCONT) }) // if a test fails while it is stopped
	s.wellFor(10, "at the start")
	return s
}

// breaks makes faults until the time is over, each when the one before is over.
func (s *soak) breaks(lasts time.Duration) {
	s.t.Helper()
	for until := time.Now().Add(lasts); time.Now().Before(until); {
		s.job.Pause(time.Duration(200+s.chance.IntN(3000)) * time.Millisecond)
		if len(s.deck) == 0 {
			s.deck = slices.Clone(kinds)
			s.chance.Shuffle(len(s.deck), func(a, b int) { s.deck[a], s.deck[b] = s.deck[b], s.deck[a] })
		}
		f := &fault{kind: s.deck[0], began: time.Now()}
		s.deck = s.deck[1:]
		err := f.kind.does(s, f)
		if left := new(errNotHere); errors.As(err, left) {
			if !s.nowhere[f.kind.name] {
				s.t.Logf("LEFT OUT: %s: %v", f.kind.name, err)
			}
			s.nowhere[f.kind.name] = true
			continue
		}
		if err != nil {
			s.t.Fatalf("%s: %v", f, err)
		}
		s.faults = append(s.faults, f)
		s.repaired(f)
	}
}

// repaired waits until what follows a fault is over and the job gets on.
func (s *soak) repaired(f *fault) {
	s.t.Helper()
	insist := time.Now().Add(3 * time.Second)
	s.job.Eventually(f.String()+" is found and repaired", func() error {
		s.explain()
		found := 0
		for _, h := range f.hits {
			if h.found != nil {
				found++
			}
		}
		if found < f.kind.least {
			if f.again != nil && f.kind.name == "exception" && time.Now().After(insist) {
				insist = time.Now().Add(3 * time.Second)
				_ = f.again() // it has ended: then it is about to be found
			}
			return fmt.Errorf("%d of %d incidents", found, f.kind.least)
		}
		for _, one := range s.job.Incidents() {
			if one.Open {
				return fmt.Errorf("incident %s is open", one.ID)
			}
		}
		return nil
	})
	s.wellFor(10, "after "+f.String())
	s.nothingOfEarlierLives(f)
	f.over = time.Now()
	s.explain()
	s.tell(f)
	s.unexplained()
}

// wellFor waits until every worker of every role has spoken in its life and the lead role has made so
// many steps more.
func (s *soak) wellFor(steps int64, when string) {
	s.t.Helper()
	life, from := 0, int64(0)
	s.job.Eventually(fmt.Sprintf("%d more steps with everybody well %s", steps, when), func() error {
		roles, err := s.job.Roles()
		if err != nil {
			return err
		}
		for _, r := range roles {
			silent := slices.ContainsFunc(r.Workers, func(w httpapi.Worker) bool { return w.Step == nil })
			if !r.Healthy || r.State != role.Running || silent || len(r.Workers) == 0 {
				life = 0
				return fmt.Errorf("%s is not well: %+v", r.Name, r)
			}
		}
		lead := roles[slices.IndexFunc(roles, func(r httpapi.Role) bool { return r.Name == s.lead })]
		if life != lead.Incarnation {
			life, from = lead.Incarnation, lead.CurrentStep
		}
		if lead.CurrentStep < from+steps {
			return fmt.Errorf("%s is at step %d, and was at %d", s.lead, lead.CurrentStep, from)
		}
		return nil
	})
}

// nothingOfEarlierLives checks that every process that bears a mark is of its role's current life.
func (s *soak) nothingOfEarlierLives(f *fault) {
	s.t.Helper()
	roles, err := s.job.Roles()
	if err != nil {
		s.t.Fatal(err)
	}
	current := map[string]bool{}
	for _, r := range roles {
		for _, w := range r.Workers {
			current[w.Life] = true
		}
	}
	services := 0
	for pid, p := range s.job.Processes() {
		switch life := p.Life(); {
		case life == "":
			services++
		case !current[life]:
			text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			s.t.Errorf("after %s: process %d %q of life %s is there, and the role is past it", f, pid, text, life)
		}
	}
	if services != len(roles) {
		s.t.Errorf("after %s: %d services for %d roles", f, services, len(roles))
	}
}

// explain gives every incident to the hit that it follows from.
func (s *soak) explain() []httpapi.Incident {
	for _, f := range s.faults {
		for i := range f.hits {
			f.hits[i].found = nil
		}
	}
	var unexplained []httpapi.Incident
	for _, one := range s.job.Incidents() {
		if !s.explained(one) {
			unexplained = append(unexplained, one)
		}
	}
	return unexplained
}

func (s *soak) explained(one httpapi.Incident) bool {
	for _, f := range s.faults {
		for i := range f.hits {
			h := &f.hits[i]
			if h.found == nil && h.role == one.Role && slices.Contains(h.causes, one.Cause) &&
				one.Detected.After(h.at.Add(-50*time.Millisecond)) && (f.over.IsZero() || one.Detected.Before(f.over)) {
				h.found = &one
				return true
			}
		}
	}
	return false
}

// unexplained fails the test if a failure was found that nobody made.
func (s *soak) unexplained() {
	s.t.Helper()
	for _, one := range s.explain() {
		var whole any
		if err := s.job.Get("/api/v1/incidents/"+one.ID, &whole); err != nil {
			whole = one // the job has ended
		}
		text, _ := json.MarshalIndent(whole, "", " ")
		s.t.Fatalf("a false failure: nobody made this one:\n%s\nwhat was done: %v", text, s.faults[max(0, len(s.faults)-3):])
	}
}

func (s *soak) tell(f *fault) {
	said := "no incident"
	for _, h := range f.hits {
		if h.found != nil {
			said = fmt.Sprintf("%s after %s, %s, %s", h.found.Cause, h.found.Detected.Sub(h.at).Round(time.Millisecond), h.found.Action, h.found.Detail)
			break
		}
	}
	s.t.Logf("%s %3d %s: %s; all well after %s", f.began.Format("15:04:05"), len(s.faults), f, said, f.over.Sub(f.began).Round(10*time.Millisecond))
}

// end stops the job as a user does, looks for what is left, and tells the figures.
func (s *soak) end() {
	s.t.Helper()
	roles, err := s.job.Roles()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := syscall.Kill(s.job.PID(), syscall.SIGINT); err != nil {
		s.t.Fatal(err)
	}
	left := s.job.End(130)
	for _, group := range s.groups {
		if err := os.Remove(group); err != nil {
			s.t.Errorf("a process is left in the cgroup of a fault: %v", err)
		}
	}
	s.unexplained()
	s.figures(roles, len(left))
}

// figures are for whoever reads the output.
func (s *soak) figures(roles []httpapi.Role, left int) {
	kindsDone := map[string]int{}
	var detection, recovery []time.Duration
	for _, f := range s.faults {
		kindsDone[f.kind.name]++
		for _, h := range f.hits {
			if h.found == nil {
				continue
			}
			detection = append(detection, h.found.Detected.Sub(h.at))
			if h.found.FirstStep != nil {
				recovery = append(recovery, h.found.FirstStep.Sub(h.found.Detected))
			}
		}
	}
	var text strings.Builder
	for _, k := range kinds {
		fmt.Fprintf(&text, "  %4d %s\n", kindsDone[k.name], k.name)
	}
	for _, r := range roles {
		fmt.Fprintf(&text, "  %s: life %d, step %d, %s\n", r.Name, r.Incarnation, r.CurrentStep, r.Watched)
	}
	s.t.Logf("%d faults, %d incidents, %d false, %d left over\n%s  detection %s\n  recovery  %s", len(s.faults), len(s.job.Incidents()), len(s.explain()), left,
		text.String(), quantiles(detection), quantiles(recovery))
}

func quantiles(all []time.Duration) string {
	if len(all) == 0 {
		return "none"
	}
	slices.SortFunc(all, cmp.Compare)
	at := func(q float64) time.Duration { return all[int(q*float64(len(all)-1))].Round(time.Millisecond) }
	return fmt.Sprintf("p50 %s, p90 %s, p99 %s, max %s of %d", at(.5), at(.9), at(.99), at(1), len(all))
}
