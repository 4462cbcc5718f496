package controller

import (
	"encoding/json"
	"testing"

	"vigil/internal/job"
)

// What a role is like is in the journal since the run began. Neither a key that the version of then did not have nor one
// that only the controller goes by is a reason to refuse the takeover of its workers.
func TestLivingWorkersAreNotOfAnotherRoleForWhatTheyDoNotSee(t *testing.T) {
	dir := t.TempDir()
	load := func(keys string) *job.Job {
		t.Helper()
		j, err := job.Parse("job.yaml", []byte("name: x\nroles:\n  main:\n    command: [sleep, '1']\n"+keys), dir)
		if err != nil {
			t.Fatal(err)
		}
		return j
	}
	for name, c := range map[string]struct {
		before, now string
		without     []string // that the record of before does not have
		changed     bool
	}{
		"a key that did not exist":        {without: []string{"Checkpoint", "NotifyAccess"}},
		"checkpoint.by":                   {now: "    checkpoint: {by: rank0}\n"},
		"limits, which are in force":      {now: "    limits: {heartbeat: 30s}\n"},
		"who may speak, which workers do": {now: "    notify_access: any\n", changed: true},
		"another command's environment":   {now: "    env: {A: b}\n", changed: true},
	} {
		t.Run(name, func(t *testing.T) {
			src, err := json.Marshal(load(c.before).Roles[0])
			if err != nil {
				t.Fatal(err)
			}
			var record map[string]any
			if err := json.Unmarshal(src, &record); err != nil {
				t.Fatal(err)
			}
			for _, key := range c.without {
				delete(record, key)
			}
			if src, err = json.Marshal(record); err != nil {
				t.Fatal(err)
			}
			var was job.Role
			if err := json.Unmarshal(src, &was); err != nil {
				t.Fatal(err)
			}
			changed, gone := changedSince(load(c.now), map[string]job.Role{"main": was})
			if (len(changed) > 0) != c.changed || len(gone) > 0 {
				t.Errorf("changed %q, gone %q, want a change: %v", changed, gone, c.changed)
			}
		})
	}
}
