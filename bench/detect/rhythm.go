package main

import (
	"math"
	"math/rand/v2"
	"time"
)

// stretch is what a worker does between two words: a step, or with a name a phase.
type stretch struct {
	phase string
	takes time.Duration
}

// rhythm is a healthy job, as its words show it. Each step is of all ranks, which need one another's.
type rhythm struct {
	name, what string
	brief      string        // what, for the picture
	lasts      time.Duration // of the healthy run
	history    time.Duration // before a hang
	// next returns what step n of a life is made of, the last of it a step; at is the time since the job began.
	next func(n int, at time.Duration, chance *rand.Rand) []stretch
	// crowd is how many data loaders of each worker are always busy, on CPUs that have no room for them.
	crowd int
	// starved says when others have the CPUs, since the job began.
	starved func(at time.Duration) bool
}

const saving = "checkpoint"

// every lets a job save in each so many steps for as long as that.
func every(steps int, takes time.Duration, step func(n int, at time.Duration, chance *rand.Rand) time.Duration) func(int, time.Duration, *rand.Rand) []stretch {
	return func(n int, at time.Duration, chance *rand.Rand) []stretch {
		var all []stretch
		if n > 0 && n%steps == 0 {
			all = append(all, stretch{saving, about(takes, 0.2, chance)})
		}
		return append(all, stretch{takes: step(n, at, chance)})
	}
}

// about returns d, more or less by as much as that part of it.
func about(d time.Duration, part float64, chance *rand.Rand) time.Duration {
	return time.Duration(float64(d) * (1 - part + 2*part*chance.Float64()))
}

// rhythms are the healthy jobs. Their lengths are made up after what people report of such jobs; none was chosen because
// it passes.
func rhythms() []rhythm { return append(workRhythms(), otherRhythms()...) }

// workRhythms are those in which the work itself is uneven.
func workRhythms() []rhythm {
	return []rhythm{
		{name: "steps of 1 s", brief: "checkpoints of 20 s", what: "checkpoint of 20 s each 500 steps", lasts: 12 * time.Hour, history: 2 * time.Hour,
			next: every(500, 20*time.Second, func(_ int, _ time.Duration, c *rand.Rand) time.Duration {
				return about(time.Second, 0.1, c)
			})},
		{name: "first step of 28 min", brief: "then 12 min each, as in RL", what: "then 12 min each (RL), checkpoint of 2 min each 5 steps", lasts: 72 * time.Hour, history: 8 * time.Hour,
			next: every(5, 2*time.Minute, func(n int, _ time.Duration, c *rand.Rand) time.Duration {
				if n == 0 {
					return 28 * time.Minute
				}
				return about(12*time.Minute, 0.15, c)
			})},
		{name: "evaluation", brief: "140 s each 1,000 steps of 30 s", what: "140 s each 1,000 steps of 30 s, no phase", lasts: 60 * time.Hour, history: 20 * time.Hour,
			next: every(100, 40*time.Second, func(n int, _ time.Duration, c *rand.Rand) time.Duration {
				if n > 0 && n%1000 == 0 {
					return 140 * time.Second
				}
				return about(30*time.Second, 0.1, c)
			})},
		{name: "file system stalls", brief: "steps of 10 s, checkpoints of 90 s to 6 min", what: "checkpoint of 90 s each 50 steps of 10 s; one in fifty of 6 min, one step in 500 of 100 s", lasts: 60 * time.Hour, history: 6 * time.Hour,
			next: func(n int, _ time.Duration, c *rand.Rand) []stretch {
				var all []stretch
				if n > 0 && n%50 == 0 {
					took := about(90*time.Second, 0.2, c)
					if n > 200 && c.IntN(50) == 0 {
						took = 6 * time.Minute
					}
					all = append(all, stretch{saving, took})
				}
				step := about(10*time.Second, 0.2, c)
				if c.IntN(500) == 0 {
					step = 100 * time.Second
				}
				return append(all, stretch{takes: step})
			}},
		{name: "compile storms", brief: "steps of 2 s, four slow ones each 400", what: "three first steps of 5 min, then 2 s; four in a row of 50 to 110 s each 400 steps", lasts: 24 * time.Hour, history: 4 * time.Hour,
			next: every(500, 15*time.Second, func(n int, _ time.Duration, c *rand.Rand) time.Duration {
				switch {
				case n < 3:
					return 5 * time.Minute
				case n%400 < 4:
					return 50*time.Second + time.Duration(c.Int64N(int64(time.Minute)))
				}
				return about(2*time.Second, 0.2, c)
			})},
	}
}

// otherRhythms are those that grow, or wait for data or a CPU.
func otherRhythms() []rhythm {
	return []rhythm{
		{name: "growing steps", brief: "from 12 to 45 min as answers get longer", what: "from 12 to 45 min as answers get longer, checkpoint of 2 min each 5 steps", lasts: 90 * time.Hour, history: 40 * time.Hour,
			next: every(5, 2*time.Minute, func(n int, _ time.Duration, c *rand.Rand) time.Duration {
				return about(12*time.Minute+min(time.Duration(n)*25*time.Second, 30*time.Minute), 0.07, c)
			})},
		{name: "data stalls", brief: "steps of 15 s, some over 2 min", what: "steps of 15 s, one in three hundred over 2 min (log-normal), checkpoint of 30 s each 100", lasts: 60 * time.Hour, history: 10 * time.Hour,
			next: every(100, 30*time.Second, func(n int, _ time.Duration, c *rand.Rand) time.Duration {
				return min(time.Duration(float64(15*time.Second)*math.Exp(0.75*c.NormFloat64())), 5*time.Minute)
			})},
		{name: "crowded CPUs", brief: "12 busy data loaders on 2 CPUs", what: "steps of 10 s, twelve busy loaders on two CPUs", lasts: 12 * time.Hour, history: 2 * time.Hour, crowd: 12,
			next: every(200, 20*time.Second, func(_ int, _ time.Duration, c *rand.Rand) time.Duration {
				return about(10*time.Second, 0.3, c)
			})},
		{name: "starved for an hour", brief: "steps of 4 s take 6 min meanwhile", what: "steps of 4 s take 6 min while others have the CPUs", lasts: 6 * time.Hour, history: 4 * time.Hour,
			starved: anHour,
			next: every(500, 20*time.Second, func(_ int, at time.Duration, c *rand.Rand) time.Duration {
				if anHour(at) {
					return about(6*time.Minute, 0.2, c)
				}
				return about(4*time.Second, 0.1, c)
			})},
	}
}

// anHour is the third.
func anHour(at time.Duration) bool { return at >= 2*time.Hour && at < 3*time.Hour }
