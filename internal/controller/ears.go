package controller

import (
	"context"
	"fmt"
	"time"

	"vigil/internal/event"
	"vigil/internal/proc"
	"vigil/internal/restart"
	"vigil/internal/role"
	"vigil/internal/wire/rpc"
)

// ears hands what services say to health.
type ears struct{ *Controller }

func (e ears) about(r rpc.Registration, kind event.Kind, detail string) {
	ev := event.New(time.Now(), kind)
	ev.Role, ev.Incarnation, ev.PID, ev.Detail = r.ID.Role, r.Incarnation, r.PID, r.Name()
	if detail != "" {
		ev.Detail += ": " + detail
	}
	e.events.Record(ev)
}

// Joined records that a service stands.
func (e ears) Joined(r rpc.Registration) { e.about(r, event.ServiceJoined, "") }

// Left records that a service has ended as it should.
func (e ears) Left(r rpc.Registration) { e.about(r, event.ServiceLeft, "") }

// Suspected records that a service has missed a poll.
func (e ears) Suspected(r rpc.Registration, why string) {
	e.about(r, event.Suspected, why)
	e.log.Warn("service "+r.Name()+" does not answer", "why", why)
}

// Lost hands on that a service is dead. A seed client has no role that could be repaired: with health
// check off it ends the job as any failure does, with it on it is said.
func (e ears) Lost(r rpc.Registration, why string) {
	if !r.Seed {
		go e.crew.unreachable(r.ID, r.PID, why)
		return
	}
	e.about(r, event.Suspected, "lost: "+why)
	e.log.Error("worker process "+r.Name()+" is lost", "why", why)
	if !e.opts.UseHealthCheck {
		e.engine.StopJob("worker process "+r.Name()+" is lost and nothing is repaired without --use-health-check", restart.ExitFailed)
	}
}

// Beat hands on a heartbeat.
func (e ears) Beat(life role.Life, step int64, hasStep bool, at time.Time) {
	if hasStep {
		e.store.Beat(life, &step, at)
	} else {
		e.store.Beat(life, nil, at)
	}
}

// Guess hands on a step that was guessed.
func (e ears) Guess(life role.Life, step int64, at time.Time) { e.store.Guess(life, step, at) }

// Phase hands on that a worker has entered or left a phase.
func (e ears) Phase(life role.Life, name string, begin bool, at time.Time) {
	e.store.Phase(life, name, begin, at)
}

// Starved hands on that a silent worker is not let run.
func (e ears) Starved(life role.Life, waited time.Duration) { e.store.Starved(life, waited) }

// Notice says what a person should know of a worker.
func (e ears) Notice(life role.Life, text string) {
	said := event.New(time.Now(), event.Noticed)
	said.Role, said.Incarnation, said.Rank, said.Detail = life.Role, life.Incarnation, life.Rank, text
	e.events.Record(said)
	e.log.Warn(fmt.Sprintf("%s rank %d: %s", life.Role, life.Rank, text))
}

// Foreign counts what was dropped of processes that may not speak for a worker.
func (e ears) Foreign(life role.Life, datagrams uint64) { e.metrics.Foreign(life.Role, datagrams) }

// StepSet hands on that the role's step was set at a service.
func (e ears) StepSet(id rpc.ServiceID, s rpc.StepSet) { e.crew.heardStepSet(id, s) }

// Unreadable hands on that a worker's steps cannot be read.
func (e ears) Unreadable(life role.Life) { e.store.Unreadable(life) }

// Failed hands on a failure.
func (e ears) Failed(f role.Failure, _ rpc.ServiceID) { e.store.Report(f) }

// Worker hands on what a worker is doing, and remembers its process.
func (e ears) Worker(id rpc.ServiceID, w rpc.WorkerState) {
	if w.Again {
		e.crew.wasThere(w.Life)
	}
	e.store.Worker(w.Life, w.PID, w.State, w.Status)
	if w.Unready != "" {
		e.store.Unready(w.Life, w.Unready)
	}
	e.crew.hears(id, w)
	if (w.State == role.WorkerStarting || w.Again) && w.PID > 0 {
		if who, err := proc.Identify(w.PID); err == nil {
			e.crew.launcher.Note(id.Role, id.Index, w.PID, who.StartTime)
			e.crew.meet(id, w.Life, who)
		}
	}
	if w.State == role.WorkerDown && w.Again {
		e.crew.fell(w)
	}
	e.crew.touch()
}

// Asked carries out what an operator has asked a service for at its own endpoints.
func (e ears) Asked(r rpc.Registration, what string) {
	if what != rpc.AskedStop {
		e.log.Warn("service "+r.Name()+" was asked for something that this version does not know", "what", what)
		return
	}
	go func() {
		if err := roles(e).StopService(context.Background(), r.ID.Role); err != nil {
			e.log.Error("stop '"+string(r.ID.Role)+"', which an operator has asked its service for", "error", err)
		}
	}()
}

// Ending takes in that a service ends because of a signal.
func (e ears) Ending(r rpc.Registration, signal string) {
	e.crew.ending(r.ID, r.PID, signal)
}

// Checkpoint hands on that a worker has saved its work.
func (e ears) Checkpoint(life role.Life, step int64, _ time.Time) { e.store.Checkpoint(life, step) }
