package fleet

import (
	"fmt"
	"maps"
	"slices"

	"vigil/internal/job"
	"vigil/internal/proc"
	"vigil/internal/role"
)

// Ports knows which ports of a role the kernel keeps for earlier connections.
type Ports struct {
	Job *job.Job
	// Of returns the ports of a rank's current life by name.
	Of func(name role.Name, rank int) map[string]uint32
}

// Held says which of the ports that the next life has again is held, and by what; empty: none. A single worker has all
// of its ports again, a role only those that the job file chooses.
func (p Ports) Held(name role.Name, rank int) string {
	ports := map[string]uint32{}
	if rank != role.NoRank {
		ports = p.Of(name, rank)
	} else if r, ok := p.Job.Role(name); ok {
		for _, one := range r.Ports {
			if one.Number != 0 {
				ports[one.Name] = uint32(one.Number)
			}
		}
	}
	for _, n := range slices.Sorted(maps.Keys(ports)) {
		if state := proc.Lingering(int(ports[n])); state != "" {
			return fmt.Sprintf("port %d (%s), held by earlier connections (%s)", ports[n], n, state)
		}
	}
	return ""
}
