// Package soak breaks two real jobs at random, over and over, for as long as it is given, and leaves
// them without CPUs: no failure is found that nobody made, nothing hangs, nothing is left over, and what
// is learned goes on as if nothing had happened. A job and its round of faults is in driver_test.go,
// what is done to it in faults_test.go, what must be true of what it learned in curve_test.go.
package soak

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"vigil/e2e/rig"
	"vigil/internal/role"
)

// The variables that ask for more than the tests do by themselves.
const (
	soakVariable   = "VIGIL_SOAK"      // how long faults are made
	seedVariable   = "VIGIL_SOAK_SEED" // of all chance
	starveVariable = "VIGIL_STARVE"    // how long the CPUs are taken away, of all cores then
)

// patience is how long a repair, or anything else, may take on a busy machine.
const patience = 150 * time.Second

// floor is below which no limit is learned: how soon a worker that hangs is found.
const floor = 5 * time.Second

func TestMain(m *testing.M) { os.Exit(rig.Main(m)) }

// asked is the duration that a variable asks for, or the usual one.
func asked(t *testing.T, variable string, usual time.Duration) time.Duration {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return usual
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return d
}

// usualSeed is of the soak that nobody has asked for: the same faults every time, so that a change that breaks
// something is told from chance. make soak looks for new ones.
const usualSeed = 978498

// seed is what the variable says; else the usual one, or for a soak that was asked for a new one. It is printed
// so that the same faults can be had again.
func seed(t *testing.T) uint64 {
	t.Helper()
	n := uint64(usualSeed)
	if os.Getenv(soakVariable) != "" {
		n = rand.Uint64N(1_000_000)
	}
	if text := os.Getenv(seedVariable); text != "" {
		var err error
		if n, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s: %v", seedVariable, err)
		}
	}
	t.Logf("%s=%d", seedVariable, n)
	return n
}

// shows: R49 A48
func TestJobsThatAreBrokenAtRandomGoOnAsIfTheyWereNot(t *testing.T) {
	usual := 3 * time.Minute
	if testing.Short() {
		usual = 30 * time.Second
	}
	lasts, n := asked(t, soakVariable, usual), seed(t)
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("SKIPPED: there is no python3 on this machine, so nothing was broken")
	}
	t.Run("tiny-rl", func(t *testing.T) {
		t.Parallel()
		soakTinyRL(t, rand.New(rand.NewPCG(n, 1)), lasts)
	})
	t.Run("pytorch-ddp", func(t *testing.T) {
		t.Parallel()
		soakDDP(t, rand.New(rand.NewPCG(n, 2)), lasts)
	})
}

func soakTinyRL(t *testing.T, chance *rand.Rand, lasts time.Duration) {
	learned := rig.Folder(t)
	s := begin(t, chance, setting{
		job: "../../examples/tiny-rl/job.yaml", lead: "actor",
		environ: []string{"TINY_RL_DIR=" + learned, "TINY_RL_STEPS=1000000000"},
	})
	s.breaks(lasts)
	s.end()
	s.tinyCurve(learned)
}

func soakDDP(t *testing.T, chance *rand.Rand, lasts time.Duration) {
	set := setting{
		job: "../../examples/pytorch-ddp/job.yaml", lead: "main", python: rig.NeedTorch(t),
		environ: []string{"DDP_DIR=" + rig.Folder(t), "DDP_STEPS=1000000000", "DDP_PACE=0.05"},
	}
	s := begin(t, chance, set)
	s.breaks(lasts)
	s.end()
	last := s.ddpCurve()

	// The same training again, undisturbed and without pauses.
	set.environ = []string{"DDP_DIR=" + rig.Folder(t), fmt.Sprintf("DDP_STEPS=%d", last), "DDP_PACE=0"}
	quiet := rig.Begin(t, set.options(t, lasts+patience, 0))
	quiet.End(0)
	s.sameLosses(quiet)
}

// setting is an example job and how it is run.
type setting struct {
	job     string
	lead    role.Name
	python  string // of its roles; empty: what they say
	environ []string
}

// options changes the job file of the example so that what hangs is found soon and restarts follow each
// other at once, and lets its programs be broken through the door in testdata.
func (s setting) options(t *testing.T, patience, look time.Duration) rig.Options {
	t.Helper()
	src, err := os.ReadFile(s.job)
	if err != nil {
		t.Fatal(err)
	}
	var file map[string]any
	if err := yaml.Unmarshal(src, &file); err != nil {
		t.Fatal(err)
	}
	home, err := filepath.Abs(filepath.Dir(s.job))
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range file["roles"].(map[string]any) {
		r := one.(map[string]any)
		r["workdir"] = home
		r["limits"] = map[string]any{"heartbeat": "learned", "floor": floor.String(), "phases": map[string]any{phase: floor.String()}}
		r["restart"] = map[string]any{"backoff": map[string]any{"base": "0s"}}
		if s.python != "" {
			r["python"] = s.python
			r["command"] = []any{filepath.Join(home, "train.py")}
		}
	}
	changed, err := yaml.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	dir := rig.Folder(t)
	path := filepath.Join(dir, "job.yaml")
	if err := os.WriteFile(path, changed, 0o600); err != nil {
		t.Fatal(err)
	}
	door, err := filepath.Abs("testdata/door")
	if err != nil {
		t.Fatal(err)
	}
	environ := append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "LANG=C.UTF-8", "PYTHONDONTWRITEBYTECODE=1",
		"PYTHONPATH=" + door, doorVariable + "=" + dir}, s.environ...)
	return rig.Options{Workdir: dir, Environ: environ, Patience: patience, Look: look, Args: []string{"--job", path, "--use-health-check",
		"--max-global-restart", "1000000", "--start-timeout", "90s", "--controller-grace", "5m"}}
}
