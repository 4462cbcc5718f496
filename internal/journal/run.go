package journal

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Run is one run of the job, from its beginning to an exit that closes it. A journal knows one.
type Run struct {
	// UID is the run's: the job's name with eight hex digits.
	UID string `json:"uid"`
	Job string `json:"job"`
	// Host and BootID say where its processes are, if they are: after a boot none of them lives.
	Host   string    `json:"host"`
	BootID string    `json:"boot_id"`
	Began  time.Time `json:"began"`
	// Epoch counts the controllers of the run. The highest one is obeyed.
	Epoch uint64 `json:"epoch"`
	// JobDigest is of the job file that is in force.
	JobDigest string `json:"job_digest"`
	// Command is what its newest controller runs (program and arguments, or the job file), and Folder where that was given.
	Command string `json:"command,omitempty"`
	Folder  string `json:"folder,omitempty"`
	// Closed is how the run ended; nil while it is open.
	Closed *Ended `json:"closed,omitempty"`
	// Left is how its last controller ended, if that left it open and ended in order; nil while there is one, and after
	// one that was killed.
	Left *Ended `json:"left,omitempty"`
}

// Ended says how and when a controller has ended in order.
type Ended struct {
	Exit int       `json:"exit"`
	At   time.Time `json:"at"`
	Why  string    `json:"why"`
	Step int64     `json:"step,omitempty"` // that the roles go on from
}

// Last is how the run's last controller ended, where that is known; nil: there is one, or it was killed.
func (r *Run) Last() *Ended { return cmp.Or(r.Closed, r.Left) }

// Closes says whether a controller of a job file that exits with this status closes its run, so that the same command
// begins another with a full budget: 0 (done), 1 (stopped for a reason), 93 (do not requeue) and 130 (Ctrl-C). All
// others leave it open, as a crash does: 128+n was stopped by another signal and will go on, 2 never began.
func Closes(exit int) bool { return exit == 0 || exit == 1 || exit == 93 || exit == 130 }

const runKey = "run"

func (j *Journal) readRun() error {
	r, there, err := ReadOne[Run](j, run, runKey)
	if err != nil {
		return err
	}
	if there {
		j.now = &r
	}
	return nil
}

// OpenRun returns the run that is to be gone on with, if there is one.
func (j *Journal) OpenRun() (Run, bool, error) {
	j.runs.Lock()
	defer j.runs.Unlock()
	if j.now == nil || j.now.Closed != nil {
		return Run{}, false, nil
	}
	return *j.now, true, nil
}

// LastRun returns the run that the journal knows, open or closed, if it knows one.
func (j *Journal) LastRun() (Run, bool, error) {
	j.runs.Lock()
	defer j.runs.Unlock()
	if j.now == nil {
		return Run{}, false, nil
	}
	return *j.now, true, nil
}

// BeginRun forgets the run before with every record of it, whether it was closed or not, and begins this
// one with these records. It is on the disk when BeginRun returns nil. Like [Journal.NextEpoch], [Journal.UpdateRun], [Journal.ReopenRun],
// [Journal.LeaveRun] and [Journal.CloseRun] it waits for 10 s at most; after an error it may or may not be on the disk.
func (j *Journal) BeginRun(r Run, with ...Entry) error {
	j.runs.Lock()
	defer j.runs.Unlock()
	if r.UID == "" {
		return errors.New("begin run: it has no uid")
	}
	if err := j.writeRun(r, append([]Entry{{clear: true}}, with...)...); err != nil {
		return fmt.Errorf("begin run %s: %w", r.UID, err)
	}
	return nil
}

// NextEpoch returns an epoch that no controller of the open run has had, and that none will be given
// again.
func (j *Journal) NextEpoch() (uint64, error) {
	var epoch uint64
	err := j.UpdateRun(func(r *Run) {
		r.Epoch++
		if j.rewound { // one may have been given in the commit that is lost
			r.Epoch++
		}
		epoch = r.Epoch
	})
	if err != nil {
		return 0, fmt.Errorf("next epoch: %w", err)
	}
	return epoch, nil
}

// UpdateRun changes what the journal says of the open run; it is on the disk when UpdateRun returns nil.
// There must be an open run.
func (j *Journal) UpdateRun(change func(*Run)) error {
	j.runs.Lock()
	defer j.runs.Unlock()
	if j.now == nil || j.now.Closed != nil {
		return errors.New("update run: none is open")
	}
	r := *j.now
	change(&r)
	if err := j.writeRun(r); err != nil {
		return fmt.Errorf("update run %s: %w", r.UID, err)
	}
	return nil
}

// CloseRun records that the run has ended, once everything queued before is on the disk too. Which exits do that is the
// caller's to say.
func (j *Journal) CloseRun(how Ended) error {
	if err := j.UpdateRun(func(r *Run) { r.Closed, r.Left = &how, nil }); err != nil {
		return fmt.Errorf("close run: %w", err)
	}
	return nil
}

// LeaveRun records how a controller has ended in order that leaves the run open, likewise.
func (j *Journal) LeaveRun(how Ended) error {
	if err := j.UpdateRun(func(r *Run) { r.Left = &how }); err != nil {
		return fmt.Errorf("leave run: %w", err)
	}
	return nil
}

// ReopenRun has the run that was closed go on, with these changes of its records: all of that is on the disk when it
// returns nil.
func (j *Journal) ReopenRun(with ...Entry) error {
	j.runs.Lock()
	defer j.runs.Unlock()
	if j.now == nil || j.now.Closed == nil {
		return errors.New("reopen run: none is closed")
	}
	r := *j.now
	r.Closed = nil
	if err := j.writeRun(r, with...); err != nil {
		return fmt.Errorf("reopen run %s: %w", r.UID, err)
	}
	return nil
}

func (j *Journal) writeRun(r Run, before ...Entry) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), j.pace.sure)
	defer cancel()
	if err := j.Write(append(before, Entry{kind: run, key: runKey, json: text})...).Wait(ctx); err != nil {
		return err
	}
	j.now = &r
	return nil
}
