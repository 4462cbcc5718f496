package command

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"vigil/internal/controller"
)

// oneStroke is how long after the first signal further ones are taken for the same: a terminal and a
// wrapper both deliver one Ctrl-C.
const oneStroke = 300 * time.Millisecond

// signalError says that a signal came before anything was started.
type signalError struct{ signal syscall.Signal }

func (e *signalError) Error() string {
	return fmt.Sprintf("stopped by %s before the job was started: nothing has changed, and the same command starts it", unix.SignalName(e.signal))
}

// stopSignals are the signals that stop a job. A hang-up that whoever started us wants ignored, as
// nohup does, stays ignored.
func stopSignals() []os.Signal {
	all := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		all = append(all, syscall.SIGHUP)
	}
	return all
}

// outliveReaders lets the program go on when whoever reads its output goes away. To catch the signal
// is enough, and unlike ignoring it is not inherited by workers; see package os/signal on SIGPIPE.
func outliveReaders() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

// awaitSignal waits for a signal and returns it with the controller, if that has been made by then. It
// returns nil at the end of the run.
func awaitSignal(signals <-chan os.Signal, made <-chan *controller.Controller, done <-chan struct{}) (*syscall.Signal, *controller.Controller) {
	var c *controller.Controller
	for {
		select {
		case c = <-made:
			made = nil
		case s := <-signals:
			if c == nil {
				select {
				case c = <-made:
				default:
				}
			}
			first := s.(syscall.Signal)
			return &first, c
		case <-done:
			return nil, nil
		}
	}
}

// awaitSecond waits for a signal that is not the first one's echo, and returns nil at the end of the
// run.
func awaitSecond(signals <-chan os.Signal, done <-chan struct{}) *syscall.Signal {
	echo := time.After(oneStroke)
	for echo != nil {
		select {
		case <-signals:
		case <-echo:
			echo = nil
		case <-done:
			return nil
		}
	}
	select {
	case s := <-signals:
		second := s.(syscall.Signal)
		return &second
	case <-done:
		return nil
	}
}

// awaitWarnings begins to catch signals that warn and do not stop the job. Those that come before there is a controller
// wait for it.
func awaitWarnings(o *controller.Options) chan os.Signal {
	signals := make(chan os.Signal, 16)
	named, err := controller.ParseForward(o.ForwardSignal)
	if err != nil {
		return signals // the controller will refuse it
	}
	signal.Notify(signals, controller.Warnings(named)...)
	return signals
}

// forward gives the controller every warning that comes, until the end of the run.
func forward(signals <-chan os.Signal, c *controller.Controller, done <-chan struct{}) {
	for {
		select {
		case s := <-signals:
			c.Forward(s.(syscall.Signal))
		case <-done:
			return
		}
	}
}
