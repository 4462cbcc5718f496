package health

import "time"

// The numbers by which lack of CPU is told from a hang.
const (
	// costsKept is of how many samples it is known what a gap has cost, and costFactor how many times the most of that a
	// silence may cost, at least costFloor, and still be lack of CPU.
	costsKept  = 8
	costFactor = 3
	costFloor  = time.Second
	// waitShare is the least share of the time between two looks that counts as waiting for a CPU.
	waitShare = 20
)

// Thread names a thread of a worker.
type Thread struct{ PID, TID int }

// CPUTime is what a thread has had of a CPU, and how long it has waited for one.
type CPUTime struct{ Ran, Waited time.Duration }

// CPULook is what was seen of the threads of a worker and of its descendants.
type CPULook struct {
	At      time.Time
	Threads map[Thread]CPUTime
	Stuck   func(Thread) bool // whether a thread whose times have not moved wants to run
}

// CPU works out how much of a worker's silence is lack of CPU. A worker wants for CPU while it waits for one and has
// had less of it since its last word than a gap between two words used to cost. Once it has had more, it may wait as
// long as it likes: it does not lack CPU, it hangs, and something of it is busy. The zero value knows nothing.
//
// Its owner tells of every word, looks at all threads about once a minute and every few seconds in a silence (All), and at
// the main thread in between (Main). It is a plain value for one owner.
type CPU struct {
	costs []time.Duration // of a gap, in CPU time of all threads, by sample; newest last
	words int             // since the last look that had any
	used  time.Duration   // since then
	word  time.Time       // the newest; zero: none

	all    CPULook
	main   CPUTime
	mainAt time.Time
	told   time.Duration // of the main thread's waiting since the last look at all threads
	had    bool          // it has had its CPU since its last word
}

// Inherit takes over what a gap has cost in an earlier life of the worker.
func (c *CPU) Inherit(earlier *CPU) { c.costs = append([]time.Duration(nil), earlier.costs...) }

// Words says that the worker has said n words, the newest at the time given.
func (c *CPU) Words(n int, at time.Time) {
	c.words += n
	c.word, c.had = at, false
}

// All takes in a look at all threads, and returns how much of the silence since the last one was lack of CPU, beyond
// what Main has returned. What is seen of the time before the last word counts for what a gap costs only.
func (c *CPU) All(look CPULook) time.Duration {
	last, told := c.all, c.told
	c.all, c.told = look, 0
	if last.At.IsZero() {
		return 0
	}
	longest, passed := time.Duration(0), look.At.Sub(last.At)
	for id, now := range look.Threads {
		was, ok := last.Threads[id]
		if !ok {
			c.used += now.Ran // it was begun since
			continue
		}
		c.used += max(now.Ran-was.Ran, 0)
		longest = max(longest, waited(was, now, passed, func() bool { return look.Stuck != nil && look.Stuck(id) }))
	}
	if c.words > 0 {
		if len(c.costs) == costsKept {
			c.costs = c.costs[1:]
		}
		c.costs = append(c.costs, c.used/time.Duration(c.words))
		c.words, c.used = 0, 0
	} else {
		c.had = c.had || c.known() && c.used > c.allowed()
	}
	if c.word.After(last.At) {
		passed = look.At.Sub(c.word)
	}
	if longest = min(longest, passed); c.had || longest <= passed/waitShare {
		return 0
	}
	return max(longest-told, 0)
}

// Main takes in a look at the worker's main thread, and returns how much of the silence since the last look was lack of
// CPU. stuck says whether a thread whose times have not moved wants to run.
func (c *CPU) Main(at time.Time, now CPUTime, stuck func() bool) time.Duration {
	was, since := c.main, c.mainAt
	c.main, c.mainAt = now, at
	if since.IsZero() || c.word.After(since) {
		return 0
	}
	passed := at.Sub(since)
	w := waited(was, now, passed, stuck)
	if c.had || w <= passed/waitShare {
		return 0
	}
	c.told += w
	return w
}

// waited returns how long a thread has waited for a CPU between two looks. One whose times have not moved although it
// wants to run has waited all the time.
func waited(was, now CPUTime, passed time.Duration, stuck func() bool) time.Duration {
	switch {
	case now.Waited < was.Waited:
		return 0
	case now == was && stuck():
		return passed
	}
	return min(now.Waited-was.Waited, passed)
}

// known reports whether it is known what a gap costs.
func (c *CPU) known() bool { return len(c.costs) > 0 }

// allowed returns how much CPU time a silence may cost and still be lack of CPU.
func (c *CPU) allowed() time.Duration {
	most := time.Duration(0)
	for _, cost := range c.costs {
		most = max(most, cost)
	}
	return max(costFactor*most, costFloor)
}

// Satisfied reports whether the worker has had more CPU since its last word than a gap used to cost.
func (c *CPU) Satisfied() bool { return c.had }
