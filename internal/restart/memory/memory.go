// Package memory keeps in the journal what the engine and health must know again when their controller has
// died and another goes on with the run.
package memory

import (
	"cmp"
	"context"
	"slices"
	"strconv"

	"vigil/internal/journal"
	"vigil/internal/restart"
	"vigil/internal/restart/engine"
	"vigil/internal/role"
)

// The keys of what the journal has one of.
const (
	ledgerKey    = "ledger"
	incidentsKey = "incidents"
)

// Memory is the journal as the engine sees it.
type Memory struct{ journal *journal.Journal }

// On returns the memory in a journal.
func On(j *journal.Journal) Memory { return Memory{j} }

// Keep queues an update, and returns what waits until it is durable.
func (m Memory) Keep(u engine.Update) func(context.Context) error {
	return m.journal.Write(entries(u)...).Wait
}

// Note makes an update durable soon. What goes wrong with the disk is said by the journal itself.
func (m Memory) Note(u engine.Update) { m.journal.Write(entries(u)...) }

// Trouble says what keeps the journal from being written.
func (m Memory) Trouble() (string, bool) { return m.journal.Trouble() }

// entries are an update's records: all of them are kept, or none.
func entries(u engine.Update) []journal.Entry {
	var all []journal.Entry
	if u.Ledger != nil {
		all = append(all, journal.Put(journal.Ledger, ledgerKey, u.Ledger))
	}
	if u.Incidents > 0 {
		all = append(all, journal.Put(journal.Ledger, incidentsKey, u.Incidents))
	}
	for name, r := range u.Roles {
		all = append(all, journal.Put(journal.Role, string(name), r))
	}
	if u.Ended > 0 {
		all = append(all, journal.Delete(journal.Plan, strconv.Itoa(u.Ended)))
	}
	if u.Began != nil {
		all = append(all, journal.Put(journal.Plan, strconv.Itoa(u.Began.ID), u.Began))
	}
	return all
}

// Read returns what an earlier controller of the run has kept for the engine.
func Read(j *journal.Journal) (*engine.Remembered, error) {
	m := &engine.Remembered{Ledger: restart.NewLedger(), Roles: map[role.Name]engine.RoleMemory{}}
	roles, err := journal.Read[engine.RoleMemory](j, journal.Role)
	if err != nil {
		return nil, err
	}
	for name, r := range roles {
		m.Roles[role.Name(name)] = r
	}
	plans, err := journal.Read[engine.PlanMemory](j, journal.Plan)
	if err != nil {
		return nil, err
	}
	for _, p := range plans {
		m.Plans = append(m.Plans, p)
	}
	slices.SortFunc(m.Plans, func(a, b engine.PlanMemory) int { return cmp.Compare(a.ID, b.ID) })
	if ledger, ok, err := journal.ReadOne[restart.Ledger](j, journal.Ledger, ledgerKey); err != nil {
		return nil, err
	} else if ok {
		m.Ledger = ledger.Clone()
	}
	m.Incidents, _, err = journal.ReadOne[int](j, journal.Ledger, incidentsKey)
	return m, err
}
