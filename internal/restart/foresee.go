package restart

import (
	"time"

	"vigil/internal/role"
)

// Forecast is what would be done about a failure.
type Forecast struct {
	Lines    []Line // as from Explain
	Decision Decision
	Wait     time.Duration // at most, before who has failed is begun again
	Spent    Ledger        // before it, as of now
}

// Foresee returns what would be done at that time about one failure, and spends nothing.
func Foresee(p Policy, l Ledger, standing map[role.Name]Standing, f role.Failure, now time.Time) Forecast {
	l = l.Aged(p, standing, now)
	name := f.Life.Role
	out := Forecast{Lines: Explain(p, l, standing[name], f), Decision: Decide(p, l, standing, []role.Failure{f}), Spent: l}
	after := l.Spend(p, out.Decision, []role.Failure{f}, standing, now)
	switch {
	case f.Cause == role.Operator: // waits for nothing
	case out.Decision.Alone:
		out.Wait = p.WaitAlone(after, Worker{name, f.Life.Rank}, 0)
	case out.Decision.Action == role.InPlace || out.Decision.Action == role.Global:
		out.Wait = p.Wait(after, name, 0)
	}
	return out
}
