package main

import (
	"math/rand/v2"
	"time"

	"vigil/internal/health"
	"vigil/internal/job"
	"vigil/internal/role"
)

const (
	jobUID  = "bench-00000001"
	watched = role.Name("main")
	ranks   = 4
	tick    = time.Second // between two sweeps, as in the controller
)

// limits are vigil's defaults.
var limits = health.Limits{Start: 30 * time.Minute, Floor: 2 * time.Minute, Expect: job.OnceSeen}

var began = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// play is one job in fake time under the health table of the controller.
type play struct {
	rhythm rhythm
	table  *health.Table
	now    time.Time
	chance *rand.Rand
	step   int // of the life

	incarnation int
	lacked      bool // a second ago others had the CPUs
	todo        []stretch
	until       time.Time // the end of the stretch
	crew        [ranks]*worker
	stepped     time.Time               // the newest
	steps       func(gap time.Duration) // told of the time between two steps of a life; may be nil
}

// worker is one rank.
type worker struct {
	rank int
	late time.Duration // by which its words come after the others'
	word time.Time     // its last; zero: none
	hung bool          // it says nothing any more
	cpu  threads
}

func newPlay(r rhythm, seed uint64) *play {
	p := &play{rhythm: r, table: health.NewTable(jobUID, tick, began, health.Spec{Name: watched, Workers: ranks, Limits: limits}), now: began, chance: rand.New(rand.NewPCG(seed, 7))}
	for i := range p.crew {
		p.crew[i] = &worker{rank: i, late: time.Duration(i) * 7 * time.Millisecond}
	}
	p.begin()
	return p
}

// begin begins a life of the role.
func (p *play) begin() {
	p.incarnation = p.table.Fence(watched, p.now)
	p.table.Begin(watched, int64(p.step), p.now)
	p.step, p.todo = 0, nil
	for _, w := range p.crew {
		w.word, w.hung, w.cpu = time.Time{}, false, newThreads(p.rhythm.crowd, p.now)
		p.table.Worker(p.life(w), 100+w.rank, role.WorkerReady, "")
	}
	p.plan(p.now)
}

func (p *play) life(w *worker) role.Life {
	return role.Life{Job: jobUID, Role: watched, Incarnation: p.incarnation, Rank: w.rank, Attempt: 1}
}

// plan settles what is done from the time given on.
func (p *play) plan(from time.Time) {
	if len(p.todo) == 0 {
		p.todo = p.rhythm.next(p.step, from.Sub(began), p.chance)
	}
	p.until = from.Add(p.todo[0].takes)
	if name := p.todo[0].phase; name != "" {
		p.each(func(w *worker) { p.table.Phase(p.life(w), name, true, from.Add(w.late), p.now); w.heard(from) })
	}
}

func (p *play) each(do func(*worker)) {
	for _, w := range p.crew {
		if !w.hung {
			do(w)
		}
	}
}

func (w *worker) heard(at time.Time) {
	w.word = at
	w.cpu.watch.Words(1, at)
}

// second lets a second pass, and returns the verdicts.
func (p *play) second() []role.Failure {
	p.now = p.now.Add(tick)
	if p.lacks() {
		p.lacked = true
	} else if p.lacked { // what is left of a starved step is done soon
		p.lacked, p.until = false, p.now
	}
	for !p.until.After(p.now) {
		at, done := p.until, p.todo[0]
		p.todo = p.todo[1:]
		if done.phase == "" {
			if p.step++; p.step > 1 && p.steps != nil {
				p.steps(at.Sub(p.stepped))
			}
			p.stepped = at
		}
		p.each(func(w *worker) {
			if done.phase != "" {
				p.table.Phase(p.life(w), done.phase, false, at.Add(w.late), p.now)
			} else {
				n := int64(p.step)
				p.table.Beat(health.Word{Life: p.life(w), Step: &n, At: at.Add(w.late)}, p.now)
			}
			w.heard(at)
		})
		p.plan(at)
	}
	for _, w := range p.crew {
		p.look(w)
	}
	return p.table.Sweep(p.now).Failures
}

// look does what a service does: it tells of a silent worker how much of that was lack of CPU.
func (p *play) look(w *worker) {
	if waited, looked := w.cpu.look(p.now, w.word, !w.hung && p.lacks()); looked {
		p.table.Starved(p.life(w), waited, p.now)
	}
}

// lacks reports whether others have the CPUs.
func (p *play) lacks() bool { return p.rhythm.starved != nil && p.rhythm.starved(p.now.Sub(began)) }
