package example

import (
	"math"
	"math/rand/v2"
)

// The task that is learned: a context of two numbers asks for one of three arms. Arm k pays
// 1 - (distance of the context from its home)², so the best arm is the one at home nearest.
const (
	features = 3 // a bias and the two numbers
	arms     = 3
	batch    = 64 // samples of one step
)

var homes = [arms][2]float64{{-0.8, -0.4}, {0.8, -0.4}, {0, 0.8}}

// sample draws a context.
func sample(r *rand.Rand) [features]float64 {
	return [features]float64{1, r.Float64()*2 - 1, r.Float64()*2 - 1}
}

// pay is what an arm pays in a context.
func pay(x [features]float64, arm int) float64 {
	dx, dy := x[1]-homes[arm][0], x[2]-homes[arm][1]
	return 1 - dx*dx - dy*dy
}

// best is what the best arm pays in a context.
func best(x [features]float64) float64 {
	b := math.Inf(-1)
	for k := range arms {
		b = max(b, pay(x, k))
	}
	return b
}

// policy is a linear softmax policy: one row of weights per arm.
type policy [arms][features]float64

// chances returns how likely each arm is in a context.
func (p *policy) chances(x [features]float64) [arms]float64 {
	var c [arms]float64
	sum := 0.0
	for k := range arms {
		c[k] = math.Exp(dot(p[k], x))
		sum += c[k]
	}
	for k := range arms {
		c[k] /= sum
	}
	return c
}

// regret is what the policy is expected to lose against the best arm, over a batch.
func (p *policy) regret(r *rand.Rand) float64 {
	lost := 0.0
	for range batch {
		x := sample(r)
		lost += best(x)
		for k, c := range p.chances(x) {
			lost -= c * pay(x, k)
		}
	}
	return lost / batch
}

// improve takes one step of REINFORCE with the batch's mean as the baseline (Williams 1992), and
// returns the regret of the policy before it.
func (p *policy) improve(r *rand.Rand, rate float64) float64 {
	var xs [batch][features]float64
	var picked [batch]int
	var paid [batch]float64
	mean := 0.0
	for i := range batch {
		xs[i] = sample(r)
		picked[i] = pick(p.chances(xs[i]), r.Float64())
		paid[i] = pay(xs[i], picked[i])
		mean += paid[i] / batch
	}
	before := p.regret(r)
	var grad policy
	for i, x := range xs {
		for k, c := range p.chances(x) {
			d := -c
			if k == picked[i] {
				d++
			}
			for f := range features {
				grad[k][f] += (paid[i] - mean) * d * x[f] / batch
			}
		}
	}
	for k := range arms {
		for f := range features {
			p[k][f] += rate * grad[k][f]
		}
	}
	return before
}

// pick returns the arm on which u, from [0, 1), falls.
func pick(chances [arms]float64, u float64) int {
	for k, c := range chances {
		if u -= c; u < 0 {
			return k
		}
	}
	return arms - 1
}

// line is a linear regression.
type line [features]float64

// fit takes one step of gradient descent on the mean squared error of target, and returns the error
// before it.
func (l *line) fit(r *rand.Rand, rate float64, target func([features]float64) float64) float64 {
	var grad line
	loss := 0.0
	for range batch {
		x := sample(r)
		off := dot(*l, x) - target(x)
		loss += off * off / batch
		for f := range features {
			grad[f] += 2 * off * x[f] / batch
		}
	}
	for f := range features {
		l[f] -= rate * grad[f]
	}
	return loss
}

func dot(a, b [features]float64) float64 {
	sum := 0.0
	for f := range features {
		sum += a[f] * b[f]
	}
	return sum
}

// mind is everything that a worker has learned: the state of a checkpoint.
type mind struct {
	Step   int64  `json:"step"`
	Policy policy `json:"policy"` // of the actor
	Line   line   `json:"line"`   // of critic and advantages
}

// lesson is what one role does in one step: it changes the mind and returns a loss that falls.
type lesson func(m *mind, r *rand.Rand) float64

// lessons are the roles' parts. followed returns the newest policy that the actor has saved.
func lessons(followed func() policy) map[string]lesson {
	return map[string]lesson{
		// The actor learns to pick arms.
		"actor": func(m *mind, r *rand.Rand) float64 { return m.Policy.improve(r, 0.5) },
		// The rollout plays the actor's newest policy.
		"rollout": func(m *mind, r *rand.Rand) float64 {
			m.Policy = followed()
			return m.Policy.regret(r)
		},
		// The critic learns what a context is worth.
		"critic": func(m *mind, r *rand.Rand) float64 { return m.Line.fit(r, 0.05, best) },
		// The forward copy of the actor says how surprised the newest policy is by the best arm.
		"actor_fwd": func(m *mind, r *rand.Rand) float64 {
			m.Policy = followed()
			return surprise(&m.Policy, r)
		},
		// The advantages learn how much better the first arm is than the second.
		"advantages": func(m *mind, r *rand.Rand) float64 {
			return m.Line.fit(r, 0.05, func(x [features]float64) float64 { return pay(x, 0) - pay(x, 1) })
		},
	}
}

// surprise is the mean cross-entropy of the best arm under the policy.
func surprise(p *policy, r *rand.Rand) float64 {
	sum := 0.0
	for range batch {
		x := sample(r)
		c := p.chances(x)
		top := 0
		for k := range arms {
			if pay(x, k) > pay(x, top) {
				top = k
			}
		}
		sum -= math.Log(c[top])
	}
	return sum / batch
}
