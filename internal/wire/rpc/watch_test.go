package rpc

import (
	"context"
	"testing"
	"time"

	"vigil/api"
)

// A story of one peer, told as what happens at which second; the watch is looked at every second.
type watchEvent struct {
	at   int
	what string // ask, answer, fail, refuse, pause: not looked at until the next event
}

var watchStories = map[string]struct {
	events []watchEvent
	want   map[int]verdict
}{
	"a peer that answers is alive": {
		events: []watchEvent{{0, "ask"}, {1, "answer"}, {4, "ask"}, {5, "answer"}},
		want:   map[int]verdict{0: alive, 3: alive, 4: alive, 5: alive, 20: alive},
	},
	"one missed poll makes a suspect, and an answer clears it": {
		events: []watchEvent{{0, "ask"}, {0, "answer"}, {4, "ask"}, {5, "fail"}, {9, "answer"}},
		want:   map[int]verdict{4: alive, 5: suspect, 8: suspect, 9: alive},
	},
	"a poll without an answer is missed when the next would be due": {
		events: []watchEvent{{0, "ask"}, {0, "answer"}, {4, "ask"}},
		want:   map[int]verdict{7: alive, 8: suspect, 14: suspect, 15: dead},
	},
	"fifteen seconds count from the last answer, however often it failed": {
		events: []watchEvent{{0, "ask"}, {1, "answer"}, {5, "fail"}, {7, "fail"}, {10, "fail"}},
		want:   map[int]verdict{5: suspect, 15: suspect, 16: dead},
	},
	"an outage shorter than that is not a death": {
		events: []watchEvent{{0, "answer"}, {4, "ask"}, {6, "fail"}, {14, "answer"}},
		want:   map[int]verdict{13: suspect, 14: alive, 28: alive},
	},
	"refusal is proof at once, until somebody answers": {
		events: []watchEvent{{0, "answer"}, {1, "refuse"}, {3, "answer"}},
		want:   map[int]verdict{0: alive, 1: dead, 2: dead, 3: alive},
	},
	"one who never answered is dead after the same time": {
		events: []watchEvent{{0, "ask"}},
		want:   map[int]verdict{3: alive, 4: suspect, 14: suspect, 15: dead},
	},
	"the watch's own pause is not held against the peer": {
		events: []watchEvent{{0, "answer"}, {4, "ask"}, {5, "pause"}, {105, "nothing"}, {106, "nothing"}},
		want:   map[int]verdict{5: alive, 105: alive, 106: alive, 108: suspect, 115: dead},
	},
	"without a poll under way silence proves nothing": {
		events: []watchEvent{{0, "answer"}},
		want:   map[int]verdict{14: alive, 30: alive},
	},
}

// shows: D19 D20
func TestAWatchJudgesByTheTimesOfPollsAndAnswers(t *testing.T) {
	for name, test := range watchStories {
		t.Run(name, func(t *testing.T) {
			begin := time.Unix(1000, 0)
			w := newWatch(4*time.Second, time.Second, 15*time.Second, begin)
			paused := false
			next := 0
			for second := range 130 {
				now := begin.Add(time.Duration(second) * time.Second)
				for ; next < len(test.events) && test.events[next].at == second; next++ {
					paused = false
					switch test.events[next].what {
					case "ask":
						w.asked(now)
					case "answer":
						w.answered(now)
					case "fail":
						w.failed()
					case "refuse":
						w.refused("refuses")
					case "pause":
						paused = true
						w.look(now)
					}
				}
				if paused && second != test.events[next-1].at {
					continue
				}
				got, why := w.look(now)
				if want, asked := test.want[second]; asked && got != want {
					t.Errorf("at %d s: verdict %d (%s), want %d", second, got, why, want)
				}
			}
		})
	}
}

// shows: D3 D4
func TestPollsAreFourSecondsApartAndOneSecondForASuspect(t *testing.T) {
	var o HubOptions
	o.fill()
	var l LinkOptions
	l.fill()
	if o.PollEvery != 4*time.Second || l.PollEvery != 4*time.Second || o.FastPoll != time.Second || o.DeadAfter != 15*time.Second {
		t.Fatalf("defaults are %v, %v, %v, %v", o.PollEvery, l.PollEvery, o.FastPoll, o.DeadAfter)
	}
	now := time.Unix(1000, 0)
	w := newWatch(o.PollEvery, o.FastPoll, o.DeadAfter, now)
	if !w.due(now) {
		t.Error("the first poll is not due at once")
	}
	w.asked(now)
	w.answered(now)
	if w.due(now.Add(3999*time.Millisecond)) || !w.due(now.Add(4*time.Second)) {
		t.Error("the next poll of one who answered is not due after 4 s")
	}
	w.failed()
	if w.due(now.Add(999*time.Millisecond)) || !w.due(now.Add(time.Second)) {
		t.Error("the next poll of a suspect is not due after 1 s")
	}
}

// A service that was stopped and is let run on in the moment in which its last words are waited for has
// not died: it is not told as lost after it has been repaired.
func TestOneWhoAnswersWhileItsDeathIsToldIsAlive(t *testing.T) {
	for _, c := range []struct {
		about   string
		answers bool
		proof   string
		want    bool
	}{
		{"it answers", true, "", true},
		{"it does not", false, "", false},
		{"it has answered and is proved gone", true, "nobody listens", false},
	} {
		t.Run(c.about, func(t *testing.T) {
			answer := make(chan struct{})
			peer := startPeer(t, &peerServer{isBeat: func(ctx context.Context, _ int) error {
				select {
				case <-answer:
				case <-ctx.Done():
				}
				return nil
			}})
			w := newWatch(50*time.Millisecond, 20*time.Millisecond, 200*time.Millisecond, time.Now())
			p := newPoller(w, plainConn(t, peer.target()), peer.target(), func() *api.HeartBeatRequest { return nil })
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			revived := false
			p.run(ctx, func(v verdict, _ string) bool {
				if v != dead {
					return true
				}
				if c.answers {
					close(answer)
					eventually(t, "the answer comes", func() bool { return len(p.results) > 0 })
				}
				w.gone = c.proof
				revived = p.revived()
				return false
			})
			if revived != c.want {
				t.Errorf("revived is %v", revived)
			}
		})
	}
}
