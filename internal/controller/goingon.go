package controller

import (
	"cmp"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"vigil/internal/identity"
	"vigil/internal/journal"
	"vigil/internal/proc"
)

// Command is the command line that a controller was started by, as a shell takes it.
type Command struct {
	Again   string // to start it again: goes on with a run that is open, and else begins one
	Resume  string // to go on with a run that is closed
	Program string // what it runs: program and arguments, or the job file; empty: the built-in job
	Folder  string // where it was given

	Named  *Command    // the same with the name of the run; nil: the name is in it, or nothing depends on that
	Shared func() bool // whether without the name it may mean another run
}

// certain is the command that means this run and no other.
func (c Command) certain() Command {
	if c.Named != nil && c.Shared() {
		return *c.Named
	}
	return c
}

// nothingToResumeError says that a state directory knows no run.
type nothingToResumeError struct{ home string }

func (e *nothingToResumeError) Error() string {
	return fmt.Sprintf("--resume: there is no run to go on with in %s: begin one without it", e.home)
}

// openJournal opens what earlier controllers of the job have kept, and finds out whether the run is to
// go on that one of them has begun.
func (g *ground) openJournal(o *Options, home string, log *slog.Logger) error {
	fault, err := o.journalFault()
	if err != nil {
		return err
	}
	path := filepath.Join(home, journalFile)
	if info, err := os.Stat(path); err == nil {
		g.heard = info.ModTime()
	}
	if g.journal, err = journal.Open(path, journal.Options{Job: o.Job.Name, Version: o.Version, Forget: o.ForgetState, Check: proc.CheckFile, Remake: g.folder.regain, Log: log.With("part", "journal"), Fault: fault}); err != nil {
		return fmt.Errorf("--state-dir: %w", err)
	}
	g.close = g.journal.Close
	last, known, err := g.journal.LastRun()
	if err != nil {
		return err
	}
	g.rebooted = known && last.BootID != g.boot
	if known && !o.ForgetState && !o.Resume {
		if err := notTold(home, last, g.host, g.boot); err != nil {
			return err
		}
	}
	g.was = last
	run, open, err := g.journal.OpenRun()
	switch {
	case err != nil:
		return err
	case open && o.ForgetState:
		log.Warn("the run that was open is given up", "run", run.UID, "began", run.Began)
		open = false
	case open && run.Host != g.host && run.Left == nil:
		return &otherHostError{run.UID, run.Host, g.host}
	case !open && o.Resume && !known:
		return &nothingToResumeError{home}
	case !open && o.Resume:
		run, open, g.reopens = last, true, true
	}
	g.uid, g.secret = o.Job.Name+"-"+randomHex(4), randomHex(16)
	if !open {
		return nil
	}
	if g.kept, _, err = journal.ReadOne[groundRecord](g.journal, journal.Ground, groundKey); err != nil {
		return err
	}
	g.uid, g.resumed = run.UID, true
	g.secret = cmp.Or(g.kept.Secret, g.secret)
	return nil
}

// closes says whether an exit of this controller closes the run, so that the same command begins another.
func (o *Options) closes(exit int) bool {
	if journal.Closes(exit) {
		return true
	}
	return o.Script && exit > 128 && (!o.Requeue || exit != 128+int(syscall.SIGTERM))
}

// toldRun says which run this controller goes on with, since when, and how it was left.
func (g *ground) toldRun() string {
	run := "the run of " + g.was.Began.Local().Format(identity.Moment)
	if told := g.toldEnd(); told != "" {
		run += ", " + told
	}
	if g.reopens {
		run += "; everything is to spend again"
	}
	return run
}

// toldEnd says how the last controller has ended, as a clause.
func (g *ground) toldEnd() string {
	end := g.was.Last()
	switch {
	case end == nil && g.heard.IsZero():
		return ""
	case end == nil:
		return "whose controller was killed, or crashed: it wrote last at " + g.heard.Local().Format(identity.Moment)
	case g.was.Closed != nil:
		return fmt.Sprintf("which was closed with %d at %s, at step %d (%s)", end.Exit, end.At.Local().Format(identity.Moment), end.Step, end.Why)
	default:
		return fmt.Sprintf("which was left open with %d at %s, at step %d (%s)", end.Exit, end.At.Local().Format(identity.Moment), end.Step, end.Why)
	}
}

// sayBegins says what the start of this controller means for the runs that were there before, and whose they were.
func (c *Controller) sayBegins() {
	for _, note := range c.opts.Notes {
		c.log.Info(note)
	}
	was, is := &c.ground.was, c.opts.Command
	if was.Folder != "" && (was.Command != is.Program || was.Folder != is.Folder) {
		c.log.Info("the last run of this name was of something else", "run", was.UID, "program", was.Command, "folder", was.Folder)
	}
	if !c.ground.resumed && was.Closed != nil {
		c.log.Info("beginning a new run; the last one was that of "+was.Began.Local().Format(identity.Moment)+", "+c.ground.toldEnd(), "run", was.UID)
	}
}

// closeRun records how the run has ended, if it has, closes the journal, and says at last how to go on.
func (c *Controller) closeRun() error {
	c.mu.Lock()
	out := c.outcome
	c.mu.Unlock()
	if out == nil {
		return c.ground.journal.Close()
	}
	end := journal.Ended{Exit: out.Exit, At: time.Now(), Why: out.Why, Step: c.engine.LeadStep()}
	var err error
	closes := c.opts.closes(out.Exit)
	if closes {
		if err := willTell(c.ground.home, c.uid); err != nil {
			c.log.Warn("a controller that is killed now is followed by another run", "error", err)
		}
		err = c.ground.journal.CloseRun(end)
		c.opts.dieIfClosed()
	} else {
		err = c.ground.journal.LeaveRun(end)
	}
	if err != nil {
		c.log.Error("the end of the run is not recorded: the next start will go on with it", "error", err)
		closes = false
	}
	err = c.ground.journal.Close()
	c.sayHowToGoOn(end, closes)
	return err
}

// sayHowToGoOn is the last line of a run. The command is at its end, where it is easily copied.
func (c *Controller) sayHowToGoOn(end journal.Ended, closed bool) {
	cmd := c.opts.Command.certain()
	switch {
	case cmd.Again == "": // a controller within another program
	case !closed:
		c.log.Info(fmt.Sprintf("the run is open at step %d; to go on with it: %s", end.Step, cmd.Again))
	case end.Exit == 0:
		c.log.Info(fmt.Sprintf("the run is done, and closed, and without --resume a new one begins; to train further from step %d: %s", end.Step, cmd.Resume))
	default:
		c.log.Info(fmt.Sprintf("the run is closed at step %d, and without --resume a new one begins; to go on with it: %s", end.Step, cmd.Resume))
	}
}
