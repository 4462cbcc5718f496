package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"vigil/internal/devices"
	"vigil/internal/job"
	"vigil/internal/journal"
	"vigil/internal/proc"
)

// claimDevices claims what the job needs, or --gpus says. It waits where it is told to, before anything of the job has
// been started.
func (g *ground) claimDevices(ctx context.Context, o *Options, need int, log *slog.Logger) error {
	if o.DevicesUnknown != nil && (!o.DevicesGuessed || len(g.kept.Devices) > 0) {
		return g.notNow(o.DevicesUnknown)
	}
	inv, err := o.inventory(ctx, need)
	if unknown := new(devices.UnknownError); errors.As(err, &unknown) {
		return g.notNow(err)
	}
	if err != nil {
		return err
	}
	if g.resumed && len(g.kept.Devices) > 0 {
		inv.Devices = keptFirst(inv.Devices, g.kept.Devices)
	}
	claim, err := devices.Take(ctx, inv, devices.ClaimOptions{Job: g.uid, Wait: o.WaitGPUs, Ours: g.ours,
		Say: func(b *devices.Busy) { log.Info("waiting for devices: " + b.Place()) }})
	if busy := new(devices.Busy); errors.As(err, &busy) && o.WaitGPUs == 0 {
		err = fmt.Errorf("%w; --wait-for-gpus 1h waits in the queue for them, --gpus chooses others", err)
	}
	if err != nil {
		return g.notNow(err)
	}
	g.claim, g.kept.Devices, g.deviceVariable = claim, claim.IDs(), inv.Variable
	g.shown = shown(o, inv, claim)
	return nil
}

// keepGuess gives roles whose workers may be alive the devices that these were started with, where the job has guessed
// them.
func (g *ground) keepGuess(o *Options) error {
	if !g.resumed || !o.DevicesGuessed {
		return nil
	}
	before, err := journal.Read[job.Role](g.journal, journal.Policy)
	if err != nil {
		return err
	}
	alive, err := g.alive()
	if err != nil {
		return err
	}
	for i := range o.Job.Roles {
		r := &o.Job.Roles[i]
		if was, known := before[string(r.Name)]; known && alive[r.Name] {
			r.Resources.GPUs = was.Resources.GPUs
		}
	}
	return nil
}

// shown is what workers see that reserve no devices: with --gpus those that the job has, else what there is, and
// nothing is said of it unless the job asks for that.
func shown(o *Options, inv devices.Inventory, claim *devices.Claim) *string {
	ids := claim.IDs()
	switch {
	case o.GPUs == "" && o.ShowDevices:
		ids = inv.IDs()
	case o.GPUs == "":
		return nil
	}
	text := strings.Join(ids, ",")
	if text == "" {
		text = devices.None
	}
	return &text
}

// inventory is what the job may choose from, and how much of it it wants.
func (o *Options) inventory(ctx context.Context, need int) (devices.Inventory, error) {
	if o.Inventory != nil {
		return o.Inventory.Wish(o.GPUs, need)
	}
	return devices.Find(ctx, devices.Options{GPUs: o.GPUs, Need: need, Fake: o.FakeGPUs, Space: FakeSpace(o.RuntimeDir), Environ: o.Environ})
}

// FakeSpace keeps the pretended devices of a runtime directory that was chosen apart from those of the machine, so
// that trials do not meet.
func FakeSpace(runtimeDir string) string {
	if runtimeDir == proc.DefaultDir() {
		return ""
	}
	return runtimeDir
}
