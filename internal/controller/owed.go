package controller

import (
	"fmt"
	"time"

	"vigil/internal/journal"
	"vigil/internal/launcher/local"
	"vigil/internal/proc"
	"vigil/internal/role"
)

// obligationRecord is what is still there of a service although everything was done to end it.
type obligationRecord struct {
	Role    role.Name    `json:"role"`
	Index   int          `json:"index"`
	Since   time.Time    `json:"since"`
	Left    []leftRecord `json:"left"`
	Earlier bool         `json:"earlier,omitempty"` // an earlier run has left it
	Devices []string     `json:"devices,omitempty"` // that it may use
}

// leftRecord is one process of it.
type leftRecord struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // in clock ticks since boot
	Name  string `json:"name"`
	Why   string `json:"why"`
}

// owes keeps an obligation as it is now, for the next controller, and blocks the devices that what is left may
// use until it is met.
func (w *crew) owes(o local.Obligation) {
	key := keyOf(o)
	if len(o.Left) == 0 {
		w.places.unblock(key)
	} else {
		o.Devices = w.places.block(key, o)
	}
	w.ground.journal.Write(recordOf(o))
}

func keyOf(o local.Obligation) string {
	key := fmt.Sprintf("%s/%d", o.Role, o.Index)
	if o.Earlier {
		key += "/earlier"
	}
	return key
}

// recordOf is an obligation in the journal, or that it is met.
func recordOf(o local.Obligation) journal.Entry {
	if len(o.Left) == 0 {
		return journal.Delete(journal.Obligation, keyOf(o))
	}
	r := obligationRecord{Role: o.Role, Index: o.Index, Since: o.Since, Earlier: o.Earlier, Devices: o.Devices}
	for _, h := range o.Left {
		r.Left = append(r.Left, leftRecord{h.PID, h.StartTime, h.Name, h.Why})
	}
	return journal.Put(journal.Obligation, keyOf(o), r)
}

// obligations returns what an earlier controller has left to do. A boot has met all of it.
func (g *ground) obligations() ([]local.Obligation, error) {
	if g.rebooted {
		return nil, nil
	}
	records, err := journal.Read[obligationRecord](g.journal, journal.Obligation)
	if err != nil {
		return nil, err
	}
	var owed []local.Obligation
	for _, r := range records {
		o := local.Obligation{Role: r.Role, Index: r.Index, Since: r.Since, Earlier: r.Earlier, Devices: r.Devices}
		for _, l := range r.Left {
			o.Left = append(o.Left, proc.Holder{Ident: proc.Ident{PID: l.PID, StartTime: l.Start}, Name: l.Name, Why: l.Why})
		}
		owed = append(owed, o)
	}
	return owed, nil
}
