package controller

import "cmp"

// incidentHook stands in the marks of commands of --on-incident where those of roles have the role's name.
const incidentHook = "--on-incident"

// commands returns what runs the user's commands that are called so. Their marks begin with none of the job's lives: who
// ends everything of those does not mean them.
func (c *Controller) commands(name string) runner {
	return c.ground.keeper.NewCommands(c.uid+".hook/"+name, cmp.Or(c.opts.HookTimeout, hookTimeout), c.log)
}

// notice is what the command of --on-incident is told: the incident as JSON.
type notice struct {
	incident string
	state    string // "decided" or "ended"
	body     []byte
}

// errand is the run of the command that tells it.
func (n notice) errand(command string) errand {
	return errand{
		name: "--on-incident", argv: []string{"sh", "-c", command}, input: n.body,
		environ: []string{"VIGIL_INCIDENT=" + n.incident, "VIGIL_INCIDENT_STATE=" + n.state},
		about:   []any{"incident", n.incident, "state", n.state},
	}
}
