package engines

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"vigil/e2e/rig"
	"vigil/internal/event"
	"vigil/internal/role"
	"vigil/internal/wire/httpapi"
)

// patience is how long anything may take on a busy machine.
const patience = 4 * time.Minute

// job is one run of the example. Its methods fail the test that began it.
type job struct {
	*rig.Job
	t      *testing.T
	folder string // of its checkpoint, metrics and knobs
}

// begin starts the job. Weights are sent when the test asks for it, and it goes on until finish, unless
// environ says otherwise.
func begin(t *testing.T, environ ...string) *job {
	t.Helper()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("SKIPPED: there is no python3 on this machine, so the example job was not run")
	}
	j := &job{t: t, folder: rig.Folder(t)}
	j.Job = rig.Begin(t, rig.Options{
		Environ: append(append(os.Environ(), "ENGINES_DIR="+j.folder, "PYTHONDONTWRITEBYTECODE=1", "ENGINES_LOAD=0.1",
			"ENGINES_STEPS=1000000", "ENGINES_PERIOD=0.1", "ENGINES_UPDATE_EVERY=1000000"), environ...),
		Args:     []string{"--job", "../../examples/trainer-and-engines/job.yaml"},
		Patience: patience, Look: 100 * time.Millisecond,
	})
	t.Cleanup(func() {
		if t.Failed() {
			logs, _ := filepath.Glob(filepath.Join(j.Dir, "state", "*", "logs", "*", "*", "*", "std*.log"))
			for _, path := range logs {
				text, _ := os.ReadFile(path)
				t.Logf("%s:\n%s", path, text)
			}
		}
	})
	return j
}

// engine is one engine as it is now.
type engine struct {
	pid   int
	state role.WorkerState
	life  role.Life
	url   string
}

// standing is who does the work. What does not run has pid 0.
type standing struct {
	engines         []engine // by rank
	trainer, router int      // pids
}

// look asks the controller.
func (j *job) look() (standing, error) {
	var s standing
	roles, err := j.Roles()
	if err != nil {
		return s, err
	}
	for _, r := range roles {
		switch r.Name {
		case "trainer":
			s.trainer = r.Workers[0].PID
		case "router":
			s.router = r.Workers[0].PID
		case "engine":
			for _, w := range r.Workers {
				life, err := role.ParseLife(w.Life)
				if err != nil {
					return s, err
				}
				s.engines = append(s.engines, engine{pid: w.PID, life: life})
			}
		}
	}
	var peers httpapi.PeerList
	if err := j.Get("/api/v1/roles/engine/workers", &peers); err != nil {
		return s, err
	}
	if len(s.engines) != 2 || len(peers.Workers) != 2 {
		return s, fmt.Errorf("engines %+v, peers %+v", s.engines, peers.Workers)
	}
	for i, p := range peers.Workers {
		s.engines[i].state = p.State
		s.engines[i].url = fmt.Sprintf("http://%s:%d", p.Address, p.Ports["http"])
	}
	return s, nil
}

func (j *job) now() standing {
	j.t.Helper()
	s, err := j.look()
	if err != nil {
		j.t.Fatal(err)
	}
	return s
}

// well waits until both engines are ready and asked, and the trainer makes steps.
func (j *job) well() standing {
	j.t.Helper()
	var s standing
	j.Eventually("all is well", func() (err error) {
		if s, err = j.look(); err == nil && slices.ContainsFunc(s.engines, func(e engine) bool { return e.state != role.WorkerReady }) {
			err = fmt.Errorf("it is %+v", s)
		}
		return err
	})
	j.routes(0, 1)
	j.goesOn(2)
	return j.now()
}

// steps returns how many the trainer has made.
func (j *job) steps() (int64, error) {
	var got httpapi.Role
	err := j.Get("/api/v1/roles/trainer", &got)
	return got.CurrentStep, err
}

// goesOn waits until the trainer has made so many steps more.
func (j *job) goesOn(steps int64) {
	j.t.Helper()
	from := int64(-1)
	j.Eventually("the trainer goes on", func() error {
		n, err := j.steps()
		if from < 0 && err == nil {
			from = n
		}
		if err == nil && n < from+steps {
			err = fmt.Errorf("step %d, from %d", n, from)
		}
		return err
	})
}

// routes waits until the router asks exactly the engines of these ranks.
func (j *job) routes(ranks ...int) {
	j.t.Helper()
	j.Eventually(fmt.Sprintf("the router asks the engines %v", ranks), func() error {
		s, err := j.look()
		if err != nil {
			return err
		}
		var want, got []string
		for _, rank := range ranks {
			want = append(want, s.engines[rank].url)
		}
		router, err := os.ReadFile(filepath.Join(j.folder, "router"))
		if err != nil {
			return err
		}
		var list struct{ Workers []struct{ URL string } }
		if err := request("GET", string(router)+"/list_workers", &list); err != nil {
			return err
		}
		for _, w := range list.Workers {
			got = append(got, w.URL)
		}
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(want, got) {
			return fmt.Errorf("it asks %v, want %v", got, want)
		}
		return nil
	})
}

// version is that of an engine's weights.
func (j *job) version(rank int) string {
	j.t.Helper()
	var got struct{ Version string }
	j.ask("GET", j.now().engines[rank].url+"/health", &got)
	return got.Version
}

// replacedAlone waits until the engine of that rank runs again and is asked nothing, and checks that
// nobody else was touched.
func (j *job) replacedAlone(before standing, rank int, cause role.Cause) {
	j.t.Helper()
	var got standing
	j.Eventually("the new engine was quarantined", func() (err error) {
		if got, err = j.look(); err == nil && !j.wasQuarantined(rank, got.engines[rank].life.Attempt) {
			err = fmt.Errorf("it is %+v", got)
		}
		return err
	})
	was, is, other := before.engines[rank], got.engines[rank], 1-rank
	if is.life.Incarnation != was.life.Incarnation || is.life.Attempt != was.life.Attempt+1 || is.url != was.url || is.pid == was.pid {
		j.t.Errorf("engine %d was %+v and is %+v", rank, was, is)
	}
	if got.engines[other] != before.engines[other] || got.trainer != before.trainer || got.router != before.router {
		j.t.Errorf("only engine %d has failed; all was %+v and is %+v", rank, before, got)
	}
	if got.engines[rank].state == role.WorkerQuarantined {
		j.routes(other)
	}
	j.Eventually("the incident is told", func() error {
		all := j.Incidents()
		if len(all) != 1 || all[0].Role != "engine" || all[0].Rank != rank || all[0].Cause != cause {
			return fmt.Errorf("incidents %+v, want one of engine %d: %s", all, rank, cause)
		}
		return nil
	})
}

// wasQuarantined reports whether an attempt of an engine was quarantined once it was up. The trainer may have
// admitted it since: it sends its weights again when it meets others.
func (j *job) wasQuarantined(rank, attempt int) bool {
	heard, _ := j.Events()
	return slices.ContainsFunc(heard, func(e event.Event) bool {
		return e.Kind == event.WorkerQuarantined && e.Role == "engine" && e.Rank == rank && e.Attempt == attempt
	})
}

// rejoins has the trainer send its weights, and waits until the engine of that rank is asked with the
// others, with the same weights as they.
func (j *job) rejoins(before standing, rank int) {
	j.t.Helper()
	j.knob("update")
	after := j.well()
	if mine, theirs := j.version(rank), j.version(1-rank); mine != theirs {
		j.t.Errorf("engine %d has weights %s, the other %s", rank, mine, theirs)
	}
	if other := 1 - rank; after.engines[other] != before.engines[other] || after.trainer != before.trainer {
		j.t.Errorf("all was %+v and is %+v", before, after)
	}
}

// knob puts a file into the folder for whoever obeys it.
func (j *job) knob(name string) {
	j.t.Helper()
	if err := os.WriteFile(filepath.Join(j.folder, name), nil, 0o600); err != nil {
		j.t.Fatal(err)
	}
}

// finish makes the trainer's step its last, and waits for the end: well, and with nothing left.
func (j *job) finish() {
	j.t.Helper()
	j.knob("finish")
	j.End(0)
}

// post tells the controller something.
func (j *job) post(path string) {
	j.t.Helper()
	j.ask("POST", j.URL+path, nil)
}

func (j *job) ask(method, url string, into any) {
	j.t.Helper()
	if err := request(method, url, into); err != nil {
		j.t.Fatal(err)
	}
}

// request makes one request and reads its JSON into a value, if there is one.
func request(method, url string, into any) error {
	req, err := http.NewRequest(method, url, http.NoBody)
	if err != nil {
		return err
	}
	client := http.Client{Timeout: 10 * time.Second}
	answer, err := client.Do(req)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s", method, url, answer.Status)
	}
	if into == nil {
		return nil
	}
	return json.NewDecoder(answer.Body).Decode(into)
}
