package local

import "vigil/internal/proc"

// treeNote is where the service of a place has noted the processes of its workers; empty without a runtime directory.
func (l *Launcher) treeNote(id slotID) string {
	if l.o.RuntimeDir == (proc.Dir{}) {
		return ""
	}
	return l.o.RuntimeDir.TreeNote(proc.SeatOf(l.o.JobUID, string(id.role), id.index))
}

// treeNotes are the notes of all services of the job, whoever started them.
func (l *Launcher) treeNotes() []string {
	if l.o.RuntimeDir == (proc.Dir{}) {
		return nil
	}
	return l.o.RuntimeDir.TreeNotes(l.o.JobUID)
}

// addNoted adds to a tree what services that have ended have noted of it.
func (l *Launcher) addNoted(t *proc.Tree, notes ...string) {
	for _, path := range notes {
		noted := proc.ReadTreeNote(path)
		t.Sessions = append(t.Sessions, noted.Sessions...)
		t.Processes = append(t.Processes, noted.Processes...)
	}
}

// dropTreeNotes removes notes of which nothing lives any more.
func (l *Launcher) dropTreeNotes(paths ...string) {
	for _, path := range paths {
		if path == "" {
			continue
		}
		if err := proc.RemoveTreeNote(path); err != nil {
			l.o.Log.Warn("a note of processes that are gone stays", "err", err)
		}
	}
}
