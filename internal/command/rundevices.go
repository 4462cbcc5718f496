package command

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"vigil/internal/controller"
	"vigil/internal/devices"
	"vigil/internal/job"
)

// inventory is what a run may choose its devices from, and how many of them --gpus asks for: all, without it. It is
// looked for once. Where no tool can say, there are none and DevicesUnknown says why: whether that
// keeps the run from going on, its state says.
func (r *oneRole) inventory() (devices.Inventory, error) {
	if r.Inventory == nil {
		inv, err := devices.All(context.Background(), devices.Options{Fake: r.FakeGPUs, Space: controller.FakeSpace(r.RuntimeDir), Environ: r.Environ})
		if unknown := new(devices.UnknownError); errors.As(err, &unknown) {
			r.DevicesUnknown, inv = err, devices.Inventory{Variable: devices.CUDA}
		} else if err != nil {
			return inv, err
		}
		r.Inventory = &inv
	}
	if r.DevicesUnknown != nil {
		return *r.Inventory, nil
	}
	return r.Inventory.Wish(r.GPUs, len(r.Inventory.Devices))
}

// takeGPUs makes the devices that an accelerate configuration names those of --gpus, unless the command line has named
// others.
func (r *oneRole) takeGPUs(environ map[string]string) {
	ids := environ[devices.CUDA]
	if ids == "" {
		return
	}
	if r.GPUs == "" {
		r.GPUs = strings.TrimSuffix(ids, ",") + "," // a list, also of one
	}
	delete(environ, devices.CUDA)
}

// settleDevices gives the workers of a run their devices. Several workers have one each, locked for the run; one
// worker sees all, and so do workers that are more than the devices, and then nothing is locked. --gpus-per-worker and
// --gpus say otherwise.
func (p *program) settleDevices(r *oneRole, main *job.Role) error {
	if r.perWorker == 0 && r.GPUs == "" {
		return nil
	}
	asked := r.perWorker > 0 || r.GPUs != ""
	r.DevicesGuessed = !asked && !r.countsDevices()
	inv, err := r.inventory()
	switch {
	case r.DevicesUnknown != nil && !r.DevicesGuessed:
		return nil // refused where the run's state is known
	case r.DevicesUnknown != nil: // a run that has none does not need to know
		p.note("the devices of this machine are not known, and none is locked: %v", r.DevicesUnknown)
		return nil
	case err != nil && asked:
		return err
	case err != nil: // the run does not need to know
		p.note("the devices of this machine are not known, and none is locked: %v", err)
		r.Inventory = &devices.Inventory{Variable: devices.CUDA}
		return nil
	case len(inv.Devices) == 0 && !asked:
		return nil
	}
	n, workers := inv.Want, main.Workers
	switch {
	case r.perWorker > 0:
		if need := workers * r.perWorker; need > n {
			return fmt.Errorf("--gpus-per-worker %d: %s need %d devices, there are %d", r.perWorker, count(workers, "worker"), need, n)
		}
		main.Resources.GPUs = r.perWorker
	case r.GPUs != "":
		p.giveAsked(r, main, inv)
	case workers > 1 && workers <= n:
		main.Resources.GPUs = 1
	case workers > 1:
		p.note("%s share %s (%s), none of them locked: --gpus locks, --workers %d gives each worker one", count(workers, "worker"), count(n, "device"), strings.Join(inv.IDs(), ","), n)
		r.ShowDevices = true
	default:
		p.note("the worker sees %s (%s), none of them locked: --gpus 1 takes one for this run alone", count(n, "device"), strings.Join(inv.IDs(), ","))
		r.ShowDevices = true
	}
	return nil
}

// giveAsked divides the devices that --gpus asks for among the workers. Where they are fewer than the workers, all see
// all of them.
func (p *program) giveAsked(r *oneRole, main *job.Role, inv devices.Inventory) {
	n, workers := inv.Want, main.Workers
	if n == 0 || r.perWorker == 0 {
		return
	}
	main.Resources.GPUs = n / workers
	switch {
	case n < workers:
		p.note("%s share %s: --workers %d gives each worker one", count(workers, "worker"), count(n, "device"), n)
	case n%workers != 0:
		p.note("--gpus %s: %d for each of %s, and %d that nobody sees", r.GPUs, n/workers, count(workers, "worker"), n%workers)
	}
}

// note says something about the run on standard error.
func (p *program) note(format string, args ...any) {
	fmt.Fprintf(p.stderr, "run: "+format+"\n", args...)
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
