package controller

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
