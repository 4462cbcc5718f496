package service

import (
	"fmt"
	"testing"

	"vigil/api"
	"vigil/internal/wire/rpc"
)

func (e *ears) sets() []rpc.StepSet {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]rpc.StepSet(nil), e.stepsSet...)
}

func stepKept(number uint64) *api.ToService {
	return &api.ToService{Order: &api.ToService_StepKept{StepKept: &api.StepKept{Number: number}}}
}

// The controller owns the step: what is set at the service's own endpoint it hears, again in each session until it has
// said that it is recorded, and the answer waits for that.
// shows: FAULT-B2
func TestAStepSetAtItsOwnEndpointIsToldUntilTheControllerHasKeptIt(t *testing.T) {
	slow(t)
	t.Parallel()
	s := enter(t, workerOf(`exec sleep 1000`))
	at := "http://" + s.hub.Registrations()[0].HTTPAddress
	answered := make(chan int, 1)
	set := func(step int) {
		code, _ := request(t, "POST", fmt.Sprintf("%s/critic/set_step?step=%d", at, step), "")
		answered <- code
	}
	told := func(n int) rpc.StepSet {
		t.Helper()
		s.ears.await(t, fmt.Sprintf("step set %d", n), func() bool { return len(s.ears.stepsSet) >= n })
		return s.ears.sets()[n-1]
	}

	go set(40)
	first := told(1)
	if first.Step != 40 || first.Taken || first.Number == 0 {
		t.Errorf("told %+v, want step 40 for the next life", first)
	}
	s.must(stepKept(first.Number))
	if code := <-answered; code != 200 {
		t.Errorf("answered %d", code)
	}
	s.must(run(1))
	go set(50)
	second := told(2)
	if second.Step != 50 || second.Taken || second.Number == first.Number {
		t.Errorf("told %+v, want step 50, which the workers have not taken", second)
	}
	s.door.cut()
	if again := told(3); again.Number != second.Number || again.Step != 50 {
		t.Errorf("in the next session it told %+v, want %+v", again, second)
	}
	s.joined()
	s.must(stepKept(second.Number))
	if code := <-answered; code != 202 {
		t.Errorf("answered %d", code)
	}
	s.door.cut()
	s.ears.await(t, "a session after it was kept", func() bool { return s.ears.joins >= 3 })
	s.must(getStep())
	if sets := s.ears.sets(); len(sets) != 3 {
		t.Errorf("told %+v after it was kept", sets[3:])
	}
	go set(60)
	told(4)
	s.must(setStep(70)) // the controller's own is newer
	s.door.cut()
	s.ears.await(t, "one more session", func() bool { return s.ears.joins >= 4 })
	if answer := s.must(getStep()); len(s.ears.sets()) != 4 {
		t.Errorf("told %+v after the controller has set %d", s.ears.sets()[4:], answer.Step)
	}
	<-answered
}
