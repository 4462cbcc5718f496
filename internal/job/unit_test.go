package job

import "testing"

func TestWorkersThatNeedNoOthersGetNoTorchAndAFloorOfOne(t *testing.T) {
	for _, c := range []struct {
		about, yaml  string
		distributed  Distributed
		minAvailable int
		rejoin       Rejoin
	}{
		{"a role is restarted as a whole", "{command: [x], workers: 4}", Torch, -1, ""},
		{"several workers", "{command: [x], workers: 4, restart: {unit: worker}}", None, 1, RejoinAuto},
		{"one worker has no others", "{command: [x], restart: {unit: worker}}", None, 0, RejoinAuto},
		{"the number of workers is said later", "{command: [x], restart: {unit: worker, rejoin: manual}, workers: 2}", None, 1, RejoinManual},
		{"the file beats the defaults", "{command: [x], workers: 4, distributed: torch, restart: {unit: worker, min_available: 3}}", Torch, 3, RejoinAuto},
		{"none need be ready", "{command: [x], workers: 4, restart: {unit: worker, min_available: 0}}", None, 0, RejoinAuto},
	} {
		t.Run(c.about, func(t *testing.T) {
			j := mustParse(t, "name: x\nroles: {engine: "+c.yaml+"}")
			r := j.Roles[0]
			if r.Distributed != c.distributed || r.Restart.MinAvailable != c.minAvailable || r.Restart.Rejoin != c.rejoin {
				t.Errorf("got %s, %d, %q, want %s, %d, %q", r.Distributed, r.Restart.MinAvailable, r.Restart.Rejoin, c.distributed, c.minAvailable, c.rejoin)
			}
			roundTrip(t, j)
		})
	}
}
