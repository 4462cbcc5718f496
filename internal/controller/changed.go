package controller

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"vigil/internal/job"
	"vigil/internal/journal"
	"vigil/internal/restart/engine"
	"vigil/internal/restart/memory"
	"vigil/internal/role"
)

// digest names what a job is, to tell whether its file has changed.
func digest(j *job.Job) string {
	src, err := json.Marshal(struct {
		Lead  role.Name
		Roles []job.Role
	}{j.Lead, j.Roles})
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(src)
	return hex.EncodeToString(sum[:])
}

// roleEntries record how every role is defined.
func roleEntries(j *job.Job) []journal.Entry {
	var all []journal.Entry
	for i := range j.Roles {
		all = append(all, journal.Put(journal.Policy, string(j.Roles[i].Name), j.Roles[i]))
	}
	return all
}

// ofController returns a role without what the controller alone goes by: that is in force at once.
func ofController(r job.Role) job.Role {
	r.Restart, r.Limits, r.Hooks, r.DependsOn, r.Completion = job.Restart{Unit: r.Restart.Unit}, job.Limits{}, job.Hooks{}, nil, ""
	r.Progress.Expect, r.Checkpoint = "", job.Checkpoint{}
	return r
}

// changedSince returns the roles whose workers would be started otherwise than they were, and those that
// are no more. Keys that the controller alone goes by are not looked at.
func changedSince(j *job.Job, before map[string]job.Role) (changed, gone []role.Name) {
	for name, was := range before {
		now, ok := j.Role(role.Name(name))
		if !ok {
			gone = append(gone, role.Name(name))
			continue
		}
		if was.Logs == (job.Logs{}) { // of a version that had no default for it
			was.Logs = now.Logs
		}
		a, errA := json.Marshal(ofController(was))
		b, errB := json.Marshal(ofController(*now))
		if errA != nil || errB != nil || !bytes.Equal(a, b) || was.Workers != now.Workers {
			changed = append(changed, now.Name)
		}
	}
	slices.Sort(changed)
	slices.Sort(gone)
	return changed, gone
}

// takeOver goes on with the run of an earlier controller, where there is one.
func (c *Controller) takeOver(ctx context.Context) error {
	if c.remembered == nil {
		return nil
	}
	living, err := c.crew.adopt(ctx)
	if err != nil {
		return err
	}
	c.log.Info("going on with "+c.ground.toldRun(), "run", c.uid, "epoch", c.ground.epoch, "services alive", living,
		"global restarts spent", c.remembered.Ledger.Global)
	c.warnOfStopped()
	return nil
}

// warnOfStopped says which roles an operator has stopped under an earlier controller: they are not begun, and how they
// are.
func (c *Controller) warnOfStopped() {
	for _, n := range c.remembered.StoppedByHand(c.opts.Job.Names()) {
		c.log.Warn(fmt.Sprintf("role %s was stopped by hand under an earlier controller and stays stopped", n),
			"begin it with", fmt.Sprintf("curl -X POST %s/api/v1/roles/%s/restart", c.url(), n))
	}
}

// recall reads what an earlier controller of the run has kept, and says whether the job can go on as it
// is defined now: nothing is changed under living workers without being asked for. It returns the roles that
// the job has no more; nothing has been written.
func (c *Controller) recall() (gone []role.Name, err error) {
	if !c.ground.resumed {
		return nil, nil
	}
	if c.remembered, err = memory.Read(c.ground.journal); err != nil {
		return nil, err
	}
	c.remembered.Rebooted = c.ground.rebooted
	if c.ground.reopens {
		c.ground.reopening = memory.Reopen(c.remembered, c.opts.Job)
	}
	before, err := journal.Read[job.Role](c.ground.journal, journal.Policy)
	if err != nil {
		return nil, err
	}
	changed, gone := changedSince(c.opts.Job, before)
	alive, err := c.ground.alive()
	if err != nil {
		return nil, err
	}
	changed = slices.DeleteFunc(changed, func(n role.Name) bool { return !alive[n] })
	left := slices.DeleteFunc(slices.Clone(gone), func(n role.Name) bool { return !alive[n] })
	switch {
	case len(left) > 0:
		return nil, fmt.Errorf("the run %s goes on, and the job file has no role %s any more, whose workers may be alive: stop the job first, with the file that it was begun with", c.uid, words(left))
	case len(changed) > 0 && !c.opts.ApplyOnRestart:
		return nil, fmt.Errorf("the run %s goes on, and the job file defines %s otherwise than the living workers were started: give --apply-on-restart to have it so from the next restart on, or restore the file", c.uid, words(changed))
	}
	for _, n := range changed {
		c.log.Warn("the role is defined anew from its next restart on", "role", n)
	}
	c.stale = changed
	return gone, nil
}

// forgetRoles drops what was remembered of roles that the job has no more.
func (c *Controller) forgetRoles(gone []role.Name) {
	if len(gone) == 0 {
		return
	}
	for _, n := range gone {
		delete(c.remembered.Roles, n)
		c.ground.journal.Write(journal.Delete(journal.Role, string(n)), journal.Delete(journal.Policy, string(n)),
			journal.Delete(journal.Health, string(n)), journal.Delete(journal.Lease, string(n)))
	}
	c.remembered.Plans = slices.DeleteFunc(c.remembered.Plans, func(p engine.PlanMemory) bool {
		return slices.ContainsFunc(p.Roles, func(n role.Name) bool { return slices.Contains(gone, n) })
	})
}

// alive says of which roles a service lives.
func (g *ground) alive() (map[role.Name]bool, error) {
	services, err := journal.Read[serviceRecord](g.journal, journal.Service)
	if err != nil {
		return nil, err
	}
	out := map[role.Name]bool{}
	for _, s := range services {
		out[s.Role] = out[s.Role] || !g.rebooted && s.who().Alive()
	}
	return out, nil
}

func words(names []role.Name) string {
	var all []string
	for _, n := range names {
		all = append(all, string(n))
	}
	return strings.Join(all, ", ")
}

func readLine(path string) (string, error) {
	src, err := os.ReadFile(path)
	return strings.TrimSpace(string(src)), err
}
