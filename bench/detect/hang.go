package main

import "time"

// hang is a way not to get on any more.
type hang struct {
	name, what string
	colour     string
	happen     func(p *play)
}

// hangs are the ways.
func hangs() []hang {
	return []hang{
		{"stopped", "rank 1 is stopped (SIGSTOP), its peers wait for it", "#2f7fc9", func(p *play) { p.halt(sleeps, sleeps, 0, 1, 2, 3) }},
		{"deadlock", "all ranks wait for a lock", "#7cc0e8", func(p *play) { p.halt(sleeps, sleeps, 0, 1, 2, 3) }},
		{"live-lock", "main threads spin, data loaders keep the CPUs busy", "#d6604d", func(p *play) { p.halt(spins, crowded, 0, 1, 2, 3) }},
		{"one of many", "rank 2 hangs, its peers go on without it", "#9b6dd0", func(p *play) { p.halt(sleeps, sleeps, 2) }},
		{"in a phase", "all ranks hang while they save", "#2e9e57", func(p *play) {
			p.each(func(w *worker) { p.table.Phase(p.life(w), saving, true, p.now, p.now); w.heard(p.now) })
			p.halt(sleeps, sleeps, 0, 1, 2, 3)
		}},
		{"after a start", "a further life never says a word", "#d19a1c", func(p *play) {
			p.begin()
			p.halt(sleeps, sleeps, 0, 1, 2, 3)
		}},
	}
}

// halt lets ranks hang from now on: main and loaders are what their threads do.
func (p *play) halt(main, loaders rate, which ...int) {
	for _, rank := range which {
		w := p.crew[rank]
		w.cpu.pass(p.now, false)
		w.hung, w.cpu.hangs, w.cpu.others = true, &main, loaders
	}
}

// longestHang is how long a hang is watched at most.
const longestHang = 6 * time.Hour

// outcome is what became of one hang.
type outcome struct {
	took  time.Duration // from the hang to the verdict
	found bool
	bound time.Duration // the most that the rules allow
}

// findHang plays the rhythm for its history and some steps more, then the hang, right after a word.
func findHang(r rhythm, h hang, seed uint64, more int) (o outcome, early bool) {
	p := newPlay(r, seed)
	longest := time.Duration(0)
	p.steps = func(gap time.Duration) { longest = max(longest, gap) }
	for p.now.Sub(began) < r.history {
		if len(p.second()) > 0 {
			return o, true
		}
	}
	for step := p.step; p.step < step+more || len(p.todo) != 1 || p.todo[0].phase != "" || p.crew[0].word.Before(p.now.Add(-tick)); {
		if len(p.second()) > 0 {
			return o, true
		}
	}
	at := p.now
	h.happen(p)
	// The ceiling of a learned limit, and for a hang in which something is busy as much again: the end of the credit.
	o.bound = 2*max(limits.Start, 2*longest*5/4) + 2*tick
	for p.now.Sub(at) < longestHang {
		if len(p.second()) > 0 {
			o.took, o.found = p.now.Sub(at), true
			return o, false
		}
	}
	return o, false
}
