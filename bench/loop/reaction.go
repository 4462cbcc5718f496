package main

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"syscall"
	"time"

	"vigil/bench/result"
	"vigil/internal/event"
	"vigil/internal/job"
	"vigil/internal/restart"
	"vigil/internal/role"
)

// The three who start workers.
const (
	byVigil    = "vigil"
	byIdeal    = "ideal"
	byTorchrun = "torchrun"
)

// reactions are what is measured of one worker that fails again and again.
type reactions struct {
	noise         result.Samples // how late a timer of 1 ms was
	toDecision    result.Samples // kill -9 to the decision
	toWorker      result.Samples // kill -9 to the new worker's first act
	floor, peer   result.Samples // the same, under the others
	posted        result.Samples // report by HTTP to the decision
	notified      result.Samples // report by notify socket to the decision
	toldToStarted result.Samples // report by notify socket to the new worker's first act
	moves         map[string]result.Samples
}

// longMoves are the moves after a death that may take a noticeable time, in order.
var longMoves = []restart.Verb{restart.ReadStep, restart.StopService, restart.Start, restart.WriteStep, restart.Run}

// worn is the role of the worker that fails.
const worn = role.Name("worn")

// oneWorkerJob is a job of one role with one worker that is restarted in place whenever it fails.
func oneWorkerJob(program string) *job.Job {
	j := job.Builtin(program)
	r := j.Roles[0]
	r.Name = worn
	r.Command = []string{program, workerCommand}
	r.Workers, r.State, r.NotifyAccess = 1, job.Stateless, job.AnyProcess // this program speaks for it
	r.Restart.OnFailure, r.Restart.EscalateAt, r.Restart.BackOff = role.InPlace, 0, job.BackOff{}
	j.Name, j.Roles, j.Lead = "bench-reaction", []job.Role{r}, r.Name
	return j
}

// reaction lets a worker of vigil and one of each other supervisor die in turn, and vigil's report
// failures in between.
func (b *bench) reaction() (*reactions, error) {
	e, err := listen(b.folder, byVigil, byIdeal, byTorchrun)
	if err != nil {
		return nil, err
	}
	defer e.close()
	c, err := startController(b.program, filepath.Join(b.folder, "reaction"), oneWorkerJob(b.self), e.env(byVigil))
	if err != nil {
		return nil, err
	}
	floor := startIdeal(b.self, e.env(byIdeal))
	m := &reactions{moves: map[string]result.Samples{}}
	err = b.rounds(m, e, c)
	return m, errors.Join(err, floor.stop(), c.stop())
}

func (b *bench) rounds(m *reactions, e *ear, c *controller) (err error) {
	at := map[string]firstWord{}
	for _, who := range []string{byVigil, byIdeal} {
		w, err := e.next(who)
		if err != nil {
			return err
		}
		at[who] = w
	}
	if _, err := c.until(kind(event.PlanEnded)); err != nil {
		return err
	}
	peer, err := b.peer(e, at)
	if err != nil {
		b.report.Note("torchrun is left out: %s", lastLine(err))
	} else {
		stop := peer.stop
		defer func() { err = errors.Join(err, stop()) }()
	}
	for i := range b.n {
		m.noise = append(m.noise, lateness())
		if err := m.death(e, c, at); err != nil {
			return err
		}
		if err := kill(e, byIdeal, at, &m.floor); err != nil {
			return err
		}
		if err := m.reported(e, c, at); err != nil {
			return err
		}
		if peer != nil && i%b.peerEvery == 0 {
			if err := kill(e, byTorchrun, at, &m.peer); err != nil {
				b.report.Note("torchrun did not come back after restart %d: %v", len(m.peer), err)
				peer = nil
			}
		}
	}
	return nil
}

// lateness is how much later than asked for this process is woken.
func lateness() time.Duration {
	began := time.Now()
	<-time.After(time.Millisecond)
	return time.Since(began) - time.Millisecond
}

// peer starts torchrun where there is one; nil where there is none.
func (b *bench) peer(e *ear, at map[string]firstWord) (*torchrun, error) {
	path := findTorchrun()
	if path == "" {
		return nil, errors.New("it is not installed (TORCHRUN names it if it is not in PATH)")
	}
	t, err := startTorchrun(path, b.self, e.env(byTorchrun))
	if err != nil {
		return nil, err
	}
	w, err := e.next(byTorchrun)
	if err != nil {
		err = errors.Join(err, t.stop())
		return nil, fmt.Errorf("%w\n%s", err, t.said.String())
	}
	at[byTorchrun] = w
	return t, nil
}

// kill kills a worker and waits for the next.
func kill(e *ear, who string, at map[string]firstWord, s *result.Samples) error {
	began := time.Now()
	if err := syscall.Kill(at[who].PID, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill worker of %s: %w", who, err)
	}
	w, err := e.next(who)
	if err != nil {
		return err
	}
	at[who] = w
	*s = append(*s, w.At.Sub(began))
	return nil
}

// death kills vigil's worker.
func (m *reactions) death(e *ear, c *controller, at map[string]firstWord) error {
	began := time.Now()
	if err := kill(e, byVigil, at, &m.toWorker); err != nil {
		return err
	}
	events, err := decision(c, began, &m.toDecision)
	for _, ev := range events {
		if ev.Kind == event.Moved {
			m.moves[ev.Verb] = append(m.moves[ev.Verb], ev.Took)
		}
	}
	return err
}

// reported has vigil's worker report failures in both ways.
func (m *reactions) reported(e *ear, c *controller, at map[string]firstWord) error {
	began := time.Now()
	if err := c.post("/"+string(worn)+"/report_error", `{"message":"the loss is not a number"}`); err != nil {
		return err
	}
	w, err := e.next(byVigil)
	if err != nil {
		return err
	}
	if _, err := decision(c, began, &m.posted); err != nil {
		return err
	}
	up, err := net.Dial("unixgram", w.Notify)
	if err != nil {
		return fmt.Errorf("report on the notify socket: %w", err)
	}
	defer up.Close()
	began = time.Now()
	if _, err := up.Write([]byte("X_VIGIL_ERROR=the loss is not a number")); err != nil {
		return fmt.Errorf("report on the notify socket: %w", err)
	}
	if w, err = e.next(byVigil); err != nil {
		return err
	}
	at[byVigil] = w
	m.toldToStarted = append(m.toldToStarted, w.At.Sub(began))
	_, err = decision(c, began, &m.notified)
	return err
}

// decision reads the events of one repair to its end.
func decision(c *controller, began time.Time, s *result.Samples) ([]event.Event, error) {
	events, err := c.until(kind(event.PlanEnded))
	if err != nil {
		return nil, err
	}
	d, err := find(events, kind(event.Decided))
	if err != nil {
		return nil, err
	}
	if d.Action != role.InPlace || d.Rule != string(restart.RoleCanStay) {
		return nil, fmt.Errorf("decision %s by %s: %s", d.Action, d.Rule, d.Detail)
	}
	*s = append(*s, d.At.Sub(began))
	return events, nil
}

func (m *reactions) tell(r *result.Report) {
	r.Measured("noise: lateness of a 1 ms timer in the same run", m.noise, nil, nil)
	r.Measured("report by HTTP to decision", m.posted, nil, result.Below(10))
	r.Measured("report by notify socket to decision", m.notified, nil, result.Below(10))
	r.Measured("worker death to decision", m.toDecision, nil, result.Below(10))
	r.Measured("report to new process, with its predecessor's stop", m.toldToStarted, nil, nil)
	r.Measured("worker death to new process", m.toWorker, nil, result.Below(100))
	for _, verb := range longMoves {
		r.Measured("of that, the move "+string(verb), m.moves[string(verb)], nil, nil)
	}
	r.Measured("the same under an ideal supervisor", m.floor, nil, nil)
	r.Measured("the same under torchrun", m.peer, nil, nil)
	ratio := func(name string, to result.Samples, limit result.Limit) {
		if len(to) > 0 {
			r.Add(result.Row{Name: name, Unit: "x", Value: m.toWorker.At(0.5) / to.At(0.5), N: len(to)}, limit)
		}
	}
	ratio("death to new process, of the ideal supervisor's", m.floor, nil)
	ratio("death to new process, of torchrun's", m.peer, result.Below(0.5))
}
