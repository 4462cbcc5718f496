package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"vigil/internal/journal"
	"vigil/internal/launcher/local"
	"vigil/internal/placement"
	"vigil/internal/proc"
	"vigil/internal/role"
)

// survivor is a service that lives and was started for a run of this state directory.
type survivor struct {
	uid         string
	role        role.Name
	index       int
	incarnation int
	who         proc.Ident
}

func (s survivor) String() string { return fmt.Sprintf("%s/%d (pid %d)", s.role, s.index, s.who.PID) }

// survivors finds the services that live of runs of a state directory, by run. A service is a process of our user
// that has its seat, in a directory that is ours alone, and was started with this directory for its logs.
func survivors(home string) map[string][]survivor {
	all := map[string][]survivor{}
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, path := range processes {
		pid, _ := strconv.Atoi(filepath.Base(path))
		var owner unix.Stat_t
		if unix.Stat(path, &owner) != nil || owner.Uid != uint32(os.Geteuid()) {
			continue // what another user's process says of itself is not believed
		}
		was := proc.Environ(pid)
		uid, logs, name := was["VIGIL_OPT_JOB_UID"], was["VIGIL_OPT_LOG_DIR"], was["VIGIL_OPT_ROLE"]
		if uid == "" || filepath.Base(filepath.Dir(logs)) != uid || !sameFile(filepath.Dir(filepath.Dir(logs)), home) {
			continue
		}
		index, _ := strconv.Atoi(was["VIGIL_OPT_INDEX"])
		incarnation, _ := strconv.Atoi(was["VIGIL_OPT_INCARNATION"])
		if !isUID(uid, "") || strings.Contains(name, "/") {
			continue
		}
		if who, sits := proc.SitterIn(was["VIGIL_OPT_RUNTIME_DIR"], proc.SeatOf(uid, name, index)); sits && who.PID == pid {
			all[uid] = append(all[uid], survivor{uid, role.Name(name), index, incarnation, who})
		}
	}
	return all
}

func sameFile(a, b string) bool {
	one, err := os.Stat(a)
	other, wrong := os.Stat(b)
	return err == nil && wrong == nil && os.SameFile(one, other)
}

// otherJobLivesError says that the state directory belongs to another job, of which services live.
type otherJobLivesError struct {
	home, uid string
	living    []survivor
}

func (e *otherJobLivesError) Error() string {
	return fmt.Sprintf("%s is the state directory of another job, whose run %s is alive (%s): give this job a --state-dir of its own", e.home, e.uid, list(e.living))
}

// unknownRunError says that services of the job live that its journal knows nothing of.
type unknownRunError struct {
	uid    string
	living []survivor
}

func (e *unknownRunError) Error() string {
	return fmt.Sprintf("the run %s of this job is alive (%s), and the journal does not know it: put its journal back; or begin anew with --forget-state, which ends it", e.uid, list(e.living))
}

func list(living []survivor) string {
	words := make([]string, len(living))
	for i, s := range living {
		words[i] = s.String()
	}
	slices.Sort(words)
	return strings.Join(words, ", ")
}

// isUID reports whether a word looks like the uid of a run of a job; of any job, without a name.
func isUID(word, name string) bool {
	at := len(word) - len("-01234567")
	return at > 0 && uidEnd.MatchString(word[at:]) && (name == "" || word[:at] == name) && !strings.Contains(word, "/")
}

var uidEnd = regexp.MustCompile(`^-[0-9a-f]{8}$`)

// findSurvivors looks for services of earlier runs, before anything is changed. It refuses a state directory in
// which another job lives.
func (g *ground) findSurvivors(home, name string) error {
	g.living = survivors(home)
	for _, uid := range slices.Sorted(maps.Keys(g.living)) {
		if !isUID(uid, name) {
			return &otherJobLivesError{home, uid, g.living[uid]}
		}
	}
	return nil
}

// endOtherRuns ends what lives of the job's other runs, where this controller begins one: that which the journal
// knows, if it was given up or its controller has not come to its end, and when the state is forgotten
// every other. Strangers are left alone: what belongs to a run is known by its services, their seats, its cgroup
// leaves and its mark. It is refused to begin beside a run that the journal does not know.
func (g *ground) endOtherRuns(ctx context.Context, forget bool, name string, log *slog.Logger) error {
	last, known, err := g.journal.LastRun()
	if err != nil {
		return err
	}
	owed, err := g.obligations()
	if err != nil {
		return err
	}
	if err := g.knows(last.UID, owed); err != nil && !forget {
		return err
	}
	if known && last.UID != g.uid && !g.rebooted {
		services, err := journal.Read[serviceRecord](g.journal, journal.Service)
		if err != nil {
			return err
		}
		living := g.living[last.UID]
		for _, s := range services {
			one := survivor{last.UID, s.Role, s.Index, s.Incarnation, s.who()}
			if !slices.ContainsFunc(living, func(l survivor) bool { return l.who == one.who }) {
				living = append(living, one)
			}
		}
		table, _, err := placedIn(g.journal)
		if err != nil {
			return err
		}
		g.endRun(ctx, last.UID, living, owed, &table, log)
	}
	if !forget {
		return nil
	}
	others := slices.Collect(maps.Keys(g.living)) // also those whose folder is gone
	folders, err := os.ReadDir(filepath.Dir(g.state))
	for _, f := range folders {
		if f.IsDir() {
			others = append(others, f.Name())
		}
	}
	slices.Sort(others)
	for _, uid := range slices.Compact(others) {
		if isUID(uid, name) && uid != g.uid && uid != last.UID {
			g.endRun(ctx, uid, g.living[uid], nil, &placement.Table{}, log)
		}
	}
	return err
}

// knows refuses services that live of a run which is neither this one nor the last: but for those that could not
// be ended so far, which are known.
func (g *ground) knows(last string, owed []local.Obligation) error {
	for _, uid := range slices.Sorted(maps.Keys(g.living)) {
		unknown := slices.DeleteFunc(slices.Clone(g.living[uid]), func(s survivor) bool { return isOwed(owed, s.who) })
		if uid != g.uid && uid != last && len(unknown) > 0 {
			return &unknownRunError{uid, unknown}
		}
	}
	return nil
}

// isOwed reports whether a process is one that could not be ended so far.
func isOwed(owed []local.Obligation, who proc.Ident) bool {
	return slices.ContainsFunc(owed, func(o local.Obligation) bool {
		return slices.ContainsFunc(o.Left, func(h proc.Holder) bool { return h.Ident == who })
	})
}

// endRun ends what lives of a run, and keeps what could not be ended, with the devices that the run's table says.
func (g *ground) endRun(ctx context.Context, uid string, services []survivor, owed []local.Obligation, table *placement.Table, log *slog.Logger) {
	l := local.New(local.Options{Keeper: g.keeper, JobUID: uid, RuntimeDir: g.runtime, LogDir: filepath.Join(filepath.Dir(g.state), uid, "logs"), Log: log})
	for _, o := range owed {
		l.Owe(o)
	}
	for _, s := range services {
		if _, err := l.Adopt(s.role, s.index, s.incarnation, s.who); err == nil {
			log.Warn("a service of an earlier run still lives and is ended", "run", uid, "service", fmt.Sprintf("%s/%d", s.role, s.index), "pid", s.who.PID)
		}
	}
	_, err := l.StopAll(ctx, leaveGrace)
	if err = errors.Join(err, l.Close(ctx)); err != nil { // it blocks what needs it, a device or a port, and not the job
		log.Error("something of an earlier run is still there", "run", uid, "error", err)
	}
	for _, o := range l.Obligations() {
		if o.Devices == nil && !o.Earlier {
			o.Devices = devicesOf(table, o.Role, o.Index)
		}
		o.Earlier = true
		g.owed = append(g.owed, o)
	}
}
