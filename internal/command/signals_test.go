package command

import (
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"vigil/internal/controller"
)

func TestASecondSignalWithinAMomentIsTheEchoOfTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		signals, done := make(chan os.Signal, 4), make(chan struct{})
		second := make(chan *syscall.Signal, 1)
		go func() { second <- awaitSecond(signals, done) }()
		for range 3 {
			time.Sleep(90 * time.Millisecond)
			signals <- syscall.SIGINT
		}
		synctest.Wait()
		if len(second) != 0 {
			t.Fatal("an echo after 270ms was taken for a second signal")
		}
		time.Sleep(100 * time.Millisecond)
		signals <- syscall.SIGTERM
		if got := <-second; got == nil || *got != syscall.SIGTERM {
			t.Errorf("second signal is %v, want SIGTERM", got)
		}
	})
}

func TestTheWaitForSignalsEndsWithTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		done := make(chan struct{})
		close(done)
		if s, _ := awaitSignal(nil, nil, done); s != nil {
			t.Errorf("signal %v, want none", *s)
		}
		if s := awaitSecond(nil, done); s != nil {
			t.Errorf("second signal %v, want none", *s)
		}
	})
}

func TestASignalBeforeTheControllerIsMadeComesWithoutOne(t *testing.T) {
	signals, made := make(chan os.Signal, 1), make(chan *controller.Controller, 1)
	signals <- syscall.SIGINT
	if s, c := awaitSignal(signals, made, nil); s == nil || *s != syscall.SIGINT || c != nil {
		t.Errorf("signal %v, controller %v; want SIGINT and none", s, c)
	}
	made <- &controller.Controller{}
	signals <- syscall.SIGTERM
	if s, c := awaitSignal(signals, made, nil); s == nil || *s != syscall.SIGTERM || c == nil {
		t.Errorf("signal %v, controller %v; want SIGTERM and one", s, c)
	}
}
