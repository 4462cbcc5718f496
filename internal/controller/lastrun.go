package controller

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"

	"vigil/internal/journal"
	"vigil/internal/launcher/local"
)

// endLastRun ends what lives of the job's last run, where this controller begins another: one that was
// given up, or whose controller has not come to its end. Strangers are left alone: what belongs to a run is
// known by its services' pids with their start times, its cgroup leaves and its mark.
func (g *ground) endLastRun(ctx context.Context, log *slog.Logger) error {
	last, known, err := g.journal.LastRun()
	if err != nil || !known || last.UID == g.uid || g.rebooted {
		return err
	}
	services, err := journal.Read[serviceRecord](g.journal, journal.Service)
	if err != nil {
		return err
	}
	l := local.New(local.Options{Keeper: g.keeper, JobUID: last.UID, RuntimeDir: g.runtime, LogDir: filepath.Join(filepath.Dir(g.state), last.UID, "logs"), Log: log})
	owed, err := g.obligations()
	if err != nil {
		return err
	}
	for _, o := range owed {
		l.Owe(o)
	}
	for _, s := range services {
		if _, err := l.Adopt(s.Role, s.Index, s.Incarnation, s.who()); err == nil {
			log.Warn("a service of the last run still lives and is ended", "run", last.UID, "service", fmt.Sprintf("%s/%d", s.Role, s.Index), "pid", s.PID)
		}
	}
	if _, err := l.StopAll(ctx, leaveGrace); err != nil {
		log.Error("what is left of the last run", "run", last.UID, "error", err)
	}
	if err := l.Close(ctx); err != nil { // it blocks what needs it, a device or a port, and not the job
		log.Error("something of the last run is still there", "run", last.UID, "error", err)
	}
	g.owed = l.Obligations()
	for i := range g.owed {
		g.owed[i].Earlier = true
	}
	return nil
}
