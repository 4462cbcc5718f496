package event_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"vigil/internal/event"
	"vigil/internal/role"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func seqs(events []event.Event) []uint64 {
	var out []uint64
	for _, e := range events {
		out = append(out, e.Seq)
	}
	return out
}

func TestALogKeepsTheNewestEventsInOrderAndNumbersThem(t *testing.T) {
	l := event.NewLog(3)
	if got, _ := l.Since(0); got != nil {
		t.Errorf("a new log has %v", got)
	}
	for i := range 7 {
		l.Record(event.New(noon.Add(time.Duration(i)*time.Second), event.Moved))
		got, _ := l.Since(0)
		first := max(0, i-2)
		if len(got) != i-first+1 || got[0].Seq != uint64(first+1) || got[len(got)-1].Seq != uint64(i+1) || !got[0].At.Equal(noon.Add(time.Duration(first)*time.Second)) {
			t.Errorf("after %d events: %v", i+1, seqs(got))
		}
	}
}

func TestACursorGivesWhatCameAfterItAndAGapShowsWhatWasLost(t *testing.T) {
	l := event.NewLog(3)
	for range 5 {
		l.Record(event.New(noon, event.Moved))
	}
	for cursor, want := range map[uint64][]uint64{0: {3, 4, 5}, 1: {3, 4, 5}, 3: {4, 5}, 5: nil, 99: nil} {
		if got, _ := l.Since(cursor); !slices.Equal(seqs(got), want) {
			t.Errorf("since %d: %v, want %v", cursor, seqs(got), want)
		}
	}
}

func TestAReaderIsWokenByTheNextEventAndNotBefore(t *testing.T) {
	l := event.NewLog(3)
	l.Record(event.New(noon, event.Moved))
	_, more := l.Since(1)
	select {
	case <-more:
		t.Fatal("woken although nothing came")
	default:
	}
	l.Record(event.New(noon, event.Moved))
	<-more
	got, _ := l.Since(1)
	if !slices.Equal(seqs(got), []uint64{2}) {
		t.Errorf("got %v", seqs(got))
	}
}

func TestAHookSeesEveryEventOnceInOrderAlsoFromManyGoroutines(t *testing.T) {
	var seen []uint64
	l := event.NewLog(10, func(e event.Event) { seen = append(seen, e.Seq) }) // one at a time: no lock needed
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 100 {
				l.Record(event.New(noon, event.Moved))
				l.Since(0)
			}
		})
	}
	group.Wait()
	if len(seen) != 800 || !slices.IsSorted(seen) {
		t.Errorf("%d events seen, sorted: %v", len(seen), slices.IsSorted(seen))
	}
}

func TestAnEventReadsAsOneLineOfWords(t *testing.T) {
	step := int64(12)
	e := event.New(noon, event.Failure)
	e.Role, e.Incarnation, e.Rank, e.Cause, e.Step = "critic", 2, 0, role.Exited, &step
	e.Detail, e.Error = "exit \"code\" 3", "a\nb"
	if got, want := e.String(), `failed role=critic inc=2 rank=0 cause=exited step=12 detail="exit \"code\" 3" error="a\nb"`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	d := event.New(noon, event.Decided)
	d.Action, d.Rule, d.Roles = role.Global, "fatal", []role.Name{"critic", "actor"}
	if got, want := fmt.Sprint(d), "decided action=global rule=fatal roles=critic,actor"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
