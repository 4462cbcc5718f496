package job

// SavedBy says whose word makes a step a checkpoint of the role.
type SavedBy string

// The ways in which a checkpoint is said.
const (
	SavedByAll   SavedBy = "all"   // every rank that reports checkpoints has reported it
	SavedByRank0 SavedBy = "rank0" // rank 0 has: it saves, or waits until all have
)

// Checkpoint says what is known of the role's checkpoints.
type Checkpoint struct {
	By SavedBy
}

// settleCheckpoint fills in who says a checkpoint: a file that names the newest one names a whole one.
func (r *Role) settleCheckpoint() {
	if r.Checkpoint.By != "" {
		return
	}
	r.Checkpoint.By = SavedByAll
	if r.Progress.Source == FromFile {
		r.Checkpoint.By = SavedByRank0
	}
}

func checkpointKey() Key {
	return group("checkpoint", "What is known of the role's checkpoints.",
		ofRole("by", oneOf(SavedByAll, SavedByRank0), func(r *Role) *SavedBy { return &r.Checkpoint.By }, "`all`; `rank0` with `progress.source: file`",
			"Whose word makes a step a checkpoint of the role. `all`: that of every rank that reports checkpoints. Which ranks do is known once all have reported one, or one has reported a second: until then a step that only some have reported does not count. `rank0`: that of rank 0 alone, which saves for all or waits until all have saved."))
}
