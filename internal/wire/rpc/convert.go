package rpc

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"vigil/api"
	"vigil/internal/role"
)

// maxAge bounds what is believed of an age on the wire.
const maxAge = 24 * time.Hour

// WireLife returns a life as it stands in a session. A service's own life, of rank role.NoRank, has no
// rank on the wire; WireFailure says so with whole_service.
func WireLife(l role.Life) *api.Life {
	return &api.Life{Incarnation: uint64(max(l.Incarnation, 0)), Rank: uint32(max(l.Rank, 0)), Attempt: uint32(max(l.Attempt, 0))}
}

// WireExit returns an exit as it stands in a session; nil for nil.
func WireExit(e *role.Exit) *api.Exit {
	if e == nil {
		return nil
	}
	return &api.Exit{
		Code: int32(e.Code), Signal: int32(unix.SignalNum(e.Signal)), Pid: int64(e.PID), Sender: e.Sender,
		Tail: slices.Clone(e.Tail), // a link cleans what it sends, in place
	}
}

// WireFailure returns a failure as the word that Link.Send takes; its age is what has passed at now.
func WireFailure(f role.Failure, now time.Time) *api.FromService {
	return &api.FromService{Word: &api.FromService_Failure{Failure: &api.Failure{
		Life: WireLife(f.Life), WholeService: f.Life.Rank == role.NoRank, Cause: string(f.Cause), Detail: f.Detail,
		Fatal: f.Fatal, AgeMs: max(now.Sub(f.At).Milliseconds(), 0), Exit: WireExit(f.Exit), Log: f.Log,
	}}}
}

func readLife(job string, name role.Name, l *api.Life) (role.Life, error) {
	if l == nil {
		return role.Life{}, fmt.Errorf("a word without a life")
	}
	if l.Incarnation > math.MaxInt32 || l.Rank > math.MaxInt32 || l.Attempt > math.MaxInt32 {
		return role.Life{}, fmt.Errorf("a life beyond all bounds: %v", l)
	}
	return role.Life{Job: job, Role: name, Incarnation: int(l.Incarnation), Rank: int(l.Rank), Attempt: int(l.Attempt)}, nil
}

func readExit(e *api.Exit) *role.Exit {
	if e == nil {
		return nil
	}
	x := &role.Exit{Code: int(e.Code), PID: int(e.Pid), Sender: e.Sender, Tail: e.Tail}
	if e.Signal != 0 {
		x.Signal = unix.SignalName(syscall.Signal(e.Signal))
		if x.Signal == "" {
			x.Signal = fmt.Sprintf("signal %d", e.Signal)
		}
	}
	return x
}

func readFailure(job string, name role.Name, f *api.Failure, now time.Time) (role.Failure, error) {
	life, err := readLife(job, name, f.Life)
	if err != nil {
		return role.Failure{}, err
	}
	if f.WholeService {
		life.Rank = role.NoRank
	}
	cause := role.Cause(f.Cause)
	if !slices.Contains(role.Causes(), cause) {
		cause = role.Reported // a newer service's word: that it failed is what counts
	}
	return role.Failure{
		Life: life, Cause: cause, Detail: f.Detail, Fatal: f.Fatal, At: before(now, f.AgeMs), Exit: readExit(f.Exit), Log: f.Log,
	}, nil
}

func readWorker(job string, name role.Name, w *api.WorkerState) (WorkerState, error) {
	life, err := readLife(job, name, w.GetLife())
	if err != nil {
		return WorkerState{}, err
	}
	state := role.WorkerState(w.State)
	switch state {
	case role.WorkerStarting, role.WorkerReady, role.WorkerPaused, role.WorkerDown, role.WorkerFinished:
	default:
		return WorkerState{}, fmt.Errorf("a worker state that is none: %q", w.State)
	}
	return WorkerState{Life: life, PID: int(w.Pid), State: state, Exit: readExit(w.Exit), Status: w.Status, Unready: w.Unready, Past: readPast(w.Past, time.Now())}, nil
}

func readPast(p *api.Past, now time.Time) *Past {
	if !p.GetSpoken() {
		return nil
	}
	past := &Past{At: before(now, p.AgeMs), Guessed: p.Guessed}
	if p.HasStep {
		past.Step = &p.Step
	}
	for _, open := range p.Phases {
		if len(open.Name) <= role.MaxPhase {
			past.Phases = append(past.Phases, Phase{open.Name, before(now, open.AgeMs)})
		}
	}
	return past
}

// before returns the time that lies ageMS milliseconds before now; what cannot be an age is bounded.
func before(now time.Time, ageMS int64) time.Time {
	return now.Add(-time.Duration(min(max(ageMS, 0), maxAge.Milliseconds())) * time.Millisecond)
}

// clean makes every string in m valid UTF-8, which protobuf asks for and a worker's output may not be.
func clean(m proto.Message) { cleanMessage(m.ProtoReflect()) }

func cleanMessage(m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap(): // no map goes up a session
		case f.IsList() && f.Kind() == protoreflect.MessageKind:
			for i := range v.List().Len() {
				cleanMessage(v.List().Get(i).Message())
			}
		case f.IsList() && f.Kind() == protoreflect.StringKind:
			for i := range v.List().Len() {
				v.List().Set(i, protoreflect.ValueOfString(validText(v.List().Get(i).String())))
			}
		case f.Kind() == protoreflect.MessageKind:
			cleanMessage(v.Message())
		case f.Kind() == protoreflect.StringKind:
			m.Set(f, protoreflect.ValueOfString(validText(v.String())))
		}
		return true
	})
}

func validText(s string) string { return strings.ToValidUTF8(s, "\ufffd") }
