package memory

import (
	"strconv"

	"vigil/internal/job"
	"vigil/internal/journal"
	"vigil/internal/restart"
	"vigil/internal/restart/engine"
)

// Reopen has a run go on that was closed. The person who asks for that has decided that it is worth it: everything is to spend
// again, nothing is under way, and every role begins from the step that it had come to, also one that had finished or
// was stopped by hand; only what runs once and has, has. It changes what is remembered, and returns the same change of the
// journal.
func Reopen(m *engine.Remembered, roles *job.Job) []journal.Entry {
	var all []journal.Entry
	for name, r := range m.Roles {
		of, known := roles.Role(name)
		r.Finished = r.Finished && known && of.Completion == job.Once
		r.Begun, r.ByHand = false, false
		m.Roles[name] = r
		all = append(all, journal.Put(journal.Role, string(name), r))
	}
	for _, p := range m.Plans {
		all = append(all, journal.Delete(journal.Plan, strconv.Itoa(p.ID)))
	}
	m.Plans, m.Ledger = nil, restart.NewLedger()
	return append(all, journal.Delete(journal.Ledger, ledgerKey))
}
