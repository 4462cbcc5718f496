package rpc

import (
	"context"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"vigil/api"
	"vigil/internal/role"
)

// whole is what everything that a hub hears is: Ears that note nothing and look at what they are given.
type whole struct{ t *testing.T }

func (w whole) life(l role.Life) {
	if l.Job != testJob || l.Role == "" || l.Rank < role.NoRank || l.Incarnation < 0 {
		w.t.Errorf("a word of %+v is handed on", l)
	}
}
func (w whole) Joined(Registration)                              {}
func (w whole) Left(Registration)                                {}
func (w whole) Suspected(Registration, string)                   {}
func (w whole) Lost(Registration, string)                        {}
func (w whole) Beat(l role.Life, _ int64, _ bool, _ time.Time)   { w.life(l) }
func (w whole) Guess(l role.Life, _ int64, _ time.Time)          { w.life(l) }
func (w whole) Phase(l role.Life, _ string, _ bool, _ time.Time) { w.life(l) }
func (w whole) Starved(l role.Life, _ time.Duration)             { w.life(l) }
func (w whole) Notice(l role.Life, _ string)                     { w.life(l) }
func (w whole) Foreign(l role.Life, _ uint64)                    { w.life(l) }
func (w whole) Unreadable(l role.Life)                           { w.life(l) }
func (w whole) StepSet(ServiceID, StepSet)                       {}
func (w whole) Failed(f role.Failure, _ ServiceID)               { w.life(f.Life) }
func (w whole) Worker(_ ServiceID, s WorkerState)                { w.life(s.Life) }
func (w whole) Checkpoint(l role.Life, _ int64, _ time.Time)     { w.life(l) }
func (w whole) Asked(Registration, string)                       {}
func (w whole) Ending(Registration, string)                      {}

// FuzzHandlers gives the controller's handlers any message: each is answered or refused by a status, whatever is handed
// on is of this job, and no more is registered than may be. Messages that parse are given a second time with the job's
// name and token, so that they come further.
func FuzzHandlers(f *testing.F) {
	sender := &api.Sender{JobUid: testJob, Token: testToken, Role: "critic", Pid: 7, Name: "critic/0"}
	for _, m := range []proto.Message{
		&api.HeartBeatRequest{}, &api.HeartBeatRequest{Sender: sender},
		&api.RegisterWorkerProcessRequest{WorkerAddress: "unix:///tmp/x.sock"},
		&api.RegisterWorkerProcessRequest{WorkerAddress: "unix:///tmp/y.sock", Sender: sender, HttpAddress: "127.0.0.1:1"},
		&api.RegisterWorkerProcessRequest{WorkerAddress: "dns:///evil.example:1", Sender: sender},
		&api.FromService{Word: &api.FromService_Beats{Beats: &api.Beats{Beats: []*api.Beat{{Life: WireLife(role.Life{Job: testJob, Role: "critic", Incarnation: 1, Attempt: 1}), Step: 3, HasStep: true, AgeMs: -1}}}}},
		&api.FromService{Word: &api.FromService_Failure{Failure: &api.Failure{Detail: "x"}}},
		&api.FromService{Word: &api.FromService_Hello{Hello: &api.Hello{Session: "s"}}},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h := NewHub(HubOptions{JobUID: testJob, Token: testToken, Epoch: 1, Ears: whole{t}, PollEvery: time.Hour, DeadAfter: 2 * time.Hour})
		defer h.Stop(stopped())
		ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: &net.UnixAddr{Name: "@", Net: "unix"}})
		check := func(err error) {
			if _, ok := status.FromError(err); !ok {
				t.Errorf("a handler answers with %v, which is no status", err)
			}
		}
		beat, register, word := &api.HeartBeatRequest{}, &api.RegisterWorkerProcessRequest{}, &api.FromService{}
		if proto.Unmarshal(b, beat) == nil {
			for range 2 {
				_, err := hubBeats{hub: h}.IsBeat(ctx, beat)
				check(err)
				_, err = hubBeats{hub: h}.NotifyStopPoll(ctx, beat)
				check(err)
				beat.Sender = inside(beat.Sender)
			}
		}
		if proto.Unmarshal(b, register) == nil {
			for range 2 {
				_, err := hubBeats{hub: h}.RegisterWorkerProcess(ctx, register)
				check(err)
				if n := len(h.Registrations()); n > 2 {
					t.Errorf("%d are registered by two calls", n)
				}
				_, err = hubBeats{hub: h}.UnregisterWorkerProcess(ctx, register)
				check(err)
				register.Sender = inside(register.Sender)
			}
		}
		if proto.Unmarshal(b, word) == nil {
			of := &service{reg: Registration{ID: ServiceID{"critic", 0}, PID: 7}}
			h.hear(of, newOpenSession(), word)
			if hello := word.GetHello(); hello != nil {
				h.hearHello(of, hello)
			}
		}
	})
}

// inside returns a sender with what only the job's own know.
func inside(s *api.Sender) *api.Sender {
	if s == nil {
		s = &api.Sender{}
	}
	s.JobUid, s.Token = testJob, testToken
	return s
}

// stopped is a context that has ended: nobody waits for what is not there.
func stopped() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}
