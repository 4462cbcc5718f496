package main

import (
	"time"

	"vigil/internal/health"
)

// rate is what a thread has of a CPU, and for how long it waits for one, in a second.
type rate struct{ ran, waited time.Duration }

// What threads do.
var (
	trains  = rate{600 * time.Millisecond, 20 * time.Millisecond}
	loads   = rate{300 * time.Millisecond, 20 * time.Millisecond}
	crowded = rate{160 * time.Millisecond, 840 * time.Millisecond} // one of twelve on two CPUs
	lacking = rate{7 * time.Millisecond, 985 * time.Millisecond}
	spins   = rate{400 * time.Millisecond, 600 * time.Millisecond}
	sleeps  = rate{}
)

// loaders is how many data loaders work where they do not fill the CPUs.
const loaders = 2

// threads are those of one worker: the main thread first, then its data loaders.
type threads struct {
	watch  health.CPU
	times  []health.CPUTime
	at     time.Time
	all    time.Time // of the newest look at all of them
	told   time.Time
	busy   bool // its loaders fill the CPUs
	hangs  *rate
	others rate // what the loaders do in a hang
}

func newThreads(crowd int, now time.Time) threads {
	return threads{times: make([]health.CPUTime, 1+max(crowd, 12)), at: now, busy: crowd > 0}
}

// pass lets the threads do until now what they do.
func (t *threads) pass(now time.Time, lacks bool) {
	main, others := trains, loads
	switch {
	case t.hangs != nil:
		main, others = *t.hangs, t.others
	case lacks:
		main, others = lacking, lacking
	case t.busy:
		main, others = rate{500 * time.Millisecond, 150 * time.Millisecond}, crowded
	}
	d := float64(now.Sub(t.at)) / float64(time.Second)
	for i := range t.times {
		r := others
		switch {
		case i == 0:
			r = main
		case i > loaders && t.hangs == nil && !t.busy:
			r = sleeps
		}
		t.times[i].Ran += time.Duration(d * float64(r.ran))
		t.times[i].Waited += time.Duration(d * float64(r.waited))
	}
	t.at = now
}

// look is what a service does each second; see internal/service/starved.go.
func (t *threads) look(now, word time.Time, lacks bool) (waited time.Duration, looked bool) {
	t.pass(now, lacks)
	silent := now.Sub(word) >= time.Second
	if silent {
		waited = t.watch.Main(now, t.times[0], func() bool { return false })
	}
	if since := now.Sub(t.all); since >= time.Minute || since >= 10*time.Second && now.Sub(word) >= 10*time.Second {
		t.all = now
		all := make(map[health.Thread]health.CPUTime, len(t.times))
		for i, c := range t.times {
			all[health.Thread{PID: 1, TID: 1 + i}] = c
		}
		waited += t.watch.All(health.CPULook{At: now, Threads: all})
	}
	if !silent || waited == 0 && now.Sub(t.told) < 2*time.Second {
		return 0, false
	}
	t.told = now
	return waited, true
}
