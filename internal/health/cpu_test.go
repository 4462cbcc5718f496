package health

import (
	"testing"
	"time"
)

// machine plays the threads of one worker on crowded CPUs: each second every thread runs and waits as its line says, in
// milliseconds.
type machine struct {
	now     time.Time
	threads map[Thread]CPUTime
	cpu     CPU
	credit  time.Duration // since the last word
}

func newMachine() *machine {
	m := &machine{now: noonHere, threads: map[Thread]CPUTime{}}
	m.cpu.All(m.look())
	return m
}

func (m *machine) look() CPULook {
	threads := map[Thread]CPUTime{}
	for id, t := range m.threads {
		threads[id] = t
	}
	return CPULook{At: m.now, Threads: threads}
}

type doing struct{ ran, waited time.Duration }

// seconds lets each thread do the same for n seconds, and looks as a service does.
func (m *machine) seconds(n int, main doing, others ...doing) {
	for i := range n {
		m.now = m.now.Add(time.Second)
		for tid, d := range append([]doing{main}, others...) {
			t := m.threads[Thread{PID: 1, TID: 1 + tid}]
			m.threads[Thread{PID: 1, TID: 1 + tid}] = CPUTime{t.Ran + d.ran, t.Waited + d.waited}
		}
		m.credit += m.cpu.Main(m.now, m.threads[Thread{PID: 1, TID: 1}], func() bool { return false })
		if i%10 == 9 {
			m.credit += m.cpu.All(m.look())
		}
	}
}

func (m *machine) word() {
	m.cpu.Words(1, m.now)
	m.credit = 0
}

// crowd is twelve data loaders that share two CPUs.
func crowd() []doing {
	var all []doing
	for range 12 {
		all = append(all, doing{160 * time.Millisecond, 840 * time.Millisecond})
	}
	return all
}

// A hang is no lack of CPU although something of the worker is busy: data loaders that fill the CPUs, a main thread that
// spins. Lack of CPU is credited to one whose main thread waits, and to one that waits for its starved loaders.
//
// shows: FAULT-E2
func TestASilenceIsLackOfCPUOnlyWhileItCostsNoMoreThanAGapDid(t *testing.T) {
	idle := doing{}
	trains := doing{500 * time.Millisecond, 100 * time.Millisecond}
	for name, c := range map[string]struct {
		hang   func(m *machine)
		least  time.Duration // of the credit in ten minutes
		most   time.Duration
		trains []doing // the other threads while it trains
	}{
		"hung in a lock, nothing else is busy":       {func(m *machine) { m.seconds(600, idle) }, 0, 0, nil},
		"hung in a lock, twelve loaders go on":       {func(m *machine) { m.seconds(600, idle, crowd()...) }, 0, 45 * time.Second, crowd()},
		"hung and spinning among busy loaders":       {func(m *machine) { m.seconds(600, doing{400 * time.Millisecond, 600 * time.Millisecond}, crowd()...) }, 0, 45 * time.Second, crowd()},
		"starved: its main thread gets a hundredth":  {func(m *machine) { m.seconds(600, doing{10 * time.Millisecond, 990 * time.Millisecond}) }, 590 * time.Second, 600 * time.Second, nil},
		"its loaders are starved, it waits for them": {func(m *machine) { m.seconds(600, idle, doing{5 * time.Millisecond, 950 * time.Millisecond}) }, 540 * time.Second, 600 * time.Second, []doing{trains}},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine()
			for range 30 {
				m.seconds(10, trains, c.trains...)
				m.word()
			}
			c.hang(m)
			if m.credit < c.least || m.credit > c.most {
				t.Errorf("%s of ten minutes are credited, want %s to %s", m.credit, c.least, c.most)
			}
		})
	}
}

func TestAnotherLifeKnowsWhatAGapCosts(t *testing.T) {
	m := newMachine()
	for range 30 {
		m.seconds(10, doing{time.Second, 0})
		m.word()
	}
	next := newMachine()
	next.cpu.Inherit(&m.cpu)
	next.word()
	next.seconds(100, doing{500 * time.Millisecond, 500 * time.Millisecond})
	if next.credit > 45*time.Second || next.credit < 20*time.Second || !next.cpu.Satisfied() {
		t.Errorf("%s of 100 s are credited, although a gap costs 10 s", next.credit)
	}
}
