package service

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"vigil/api"
	"vigil/internal/proc"
	"vigil/internal/role"
)

// Whoever clears after a service that was killed finds its workers, and what they have started in sessions of its own and
// without any sign, in the service's note; as long as they live.
// shows: FAULT-C8
func TestAServiceNotesTheProcessesOfItsWorkers(t *testing.T) {
	t.Parallel()
	s := enter(t, workerOf(`setsid env -i sleep 1000 & echo up $!; wait`))
	path := filepath.Join(s.runtimeDir(), proc.SeatOf(s.uid, "critic", 0)+".tree")
	s.must(run(1))
	var want []int
	for rank := range 2 {
		s.awaitLog(1, rank, "up")
		want = append(want, s.ears.awaitState(t, rank, role.WorkerReady).PID, atoi(t, strings.Fields(s.log(1, rank, "stdout"))[1]))
	}
	eventually(t, "all of them to be noted", func() bool {
		var noted []int
		for _, id := range proc.ReadTreeNote(path).Processes {
			noted = append(noted, id.PID)
		}
		return !slices.ContainsFunc(want, func(pid int) bool { return !slices.Contains(noted, pid) })
	})
	s.must(stop(&api.Stop{}))
	gone(t, want...)
	if left := proc.ReadTreeNote(path); len(left.Processes) > 0 || !proc.Gone(path) {
		t.Errorf("a note of processes that are gone: %+v", left)
	}
}
