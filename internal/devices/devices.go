// Package devices knows the accelerators of this machine: which there are, who uses them, and which
// of them are this job's. It asks the vendors' tools (nvidia-smi, rocm-smi, npu-smi) in child processes, so that a
// sick driver can hang or crash those and not us; a machine without them has no devices, which is no error. Take claims
// devices for a job on the whole machine, over all its users, so that two jobs never share one.
package devices

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Device is one accelerator.
type Device struct {
	ID     string // what the variable of its kind calls it: an index or a UUID, as the user wrote it
	Index  string // the tool's index; empty when no tool lists it
	UUID   string // the same for all users and after a boot; empty when no tool lists it
	Name   string // of the model
	Memory int64  // bytes
	Ill    string // what the tool says of its health where that rules it out; empty where it is well or not known
	Fake   bool
	space  string // of pretended devices: those of another are others
}

// key names the device on the whole machine, in words of the kernel's table.
func (d Device) key() string {
	switch {
	case d.Fake:
		return digest("fake " + d.space + " " + d.ID)
	case d.UUID != "":
		return digest(d.UUID)
	default:
		return digest("gpu " + d.ID)
	}
}

// Options say which devices a job may have.
type Options struct {
	GPUs    string   // "4,5": these, by index or UUID; "N": any N that are free; "": as many as Need
	Need    int      // how many devices the job's roles reserve; used when GPUs is empty
	Fake    int      // pretended devices, named "0", "1", ..., instead of real ones
	Space   string   // pretended devices of another space are others; empty: the machine's
	Environ []string // KEY=VALUE; one of Variables in it is the inventory
}

// Inventory is what a job may choose from.
type Inventory struct {
	Devices []Device // in the order in which they are given out
	Want    int      // how many of them the job is to have
	// Variable shows workers their devices, such as CUDA_VISIBLE_DEVICES.
	Variable string
	hider    string // the variable that shows none of the devices that there are; empty: none does
}

// IDs returns the devices as CUDA_VISIBLE_DEVICES names them.
func (inv Inventory) IDs() []string { return ids(inv.Devices) }

func ids(devices []Device) []string {
	out := make([]string, len(devices))
	for i, d := range devices {
		out[i] = d.ID
	}
	return out
}

// Find takes the inventory. An error says which wish cannot be met: a device that is not there, more
// devices than there are, or a tool that does not answer.
func Find(ctx context.Context, o Options) (Inventory, error) {
	if strings.TrimSpace(o.GPUs) == "" && o.Need == 0 {
		return Inventory{Variable: CUDA}, nil
	}
	inv, err := All(ctx, o)
	if err != nil {
		return Inventory{}, err
	}
	return inv.Wish(o.GPUs, o.Need)
}

// All returns all devices that a job may have, none of them wanted yet.
func All(ctx context.Context, o Options) (Inventory, error) {
	if o.Fake < 0 {
		return Inventory{}, fmt.Errorf("pretend %d GPUs: less than none", o.Fake)
	}
	if o.Fake > 0 {
		fakes := make([]Device, o.Fake)
		for i := range fakes {
			id := strconv.Itoa(i)
			fakes[i] = Device{ID: id, Index: id, Name: "fake", Fake: true, space: o.Space}
		}
		return Inventory{Devices: fakes, Variable: CUDA}, nil
	}
	var errs []error
	hider := ""
	for _, t := range tools {
		path := findTool(t.name())
		variable := t.variable(o.Environ)
		if names, given := visibleNames(o.Environ, variable); path == "" || given && len(names) == 0 {
			if path != "" {
				hider = variable
			}
			continue
		}
		all, err := t.list(ctx, askerOf(path))
		if err != nil {
			errs = append(errs, fmt.Errorf("list devices: %w", err))
		}
		if err != nil || len(all) == 0 {
			continue
		}
		all, err = t.inherited(all, o.Environ)
		return Inventory{Devices: all, Variable: variable}, err
	}
	if len(errs) > 0 {
		return Inventory{}, &UnknownError{errors.Join(errs...)}
	}
	for _, variable := range Variables { // nobody to ask: the environment is all that is known
		if names, given := visibleNames(o.Environ, variable); given && len(names) > 0 {
			return Inventory{Devices: namesOnly(names), Variable: variable}, nil
		}
	}
	return Inventory{Variable: CUDA, hider: hider}, nil
}

// UnknownError says that no tool could say which devices there are.
type UnknownError struct{ Err error }

func (e *UnknownError) Error() string { return e.Err.Error() }

// Unwrap returns what the tools have said.
func (e *UnknownError) Unwrap() error { return e.Err }

// Wish narrows the inventory to the devices that --gpus names, and says how many of them are wanted: as many as it
// names, or need without it, but never more than there are.
func (inv Inventory) Wish(gpus string, need int) (Inventory, error) {
	all, wish := inv.Devices, strings.TrimSpace(gpus)
	if wish == "" {
		inv.Want = min(max(need, 0), len(all))
		return inv, nil
	}
	if n, err := strconv.Atoi(wish); err == nil {
		if n < 0 || n > len(all) {
			return Inventory{}, fmt.Errorf("find %d GPUs: there are %d%s%s", n, len(all), list(all), inv.hidden())
		}
		inv.Want = n
		return inv, nil
	}
	chosen, err := choose(all, wish)
	if err != nil {
		return Inventory{}, fmt.Errorf("find GPUs %s: %w%s", wish, err, inv.hidden())
	}
	inv.Devices, inv.Want = chosen, len(chosen)
	return inv, nil
}

// hidden says why there is none where the environment says so.
func (inv Inventory) hidden() string {
	if inv.hider == "" {
		return ""
	}
	return ", since " + inv.hider + " shows none"
}

func list(all []Device) string {
	if len(all) == 0 {
		return ""
	}
	return " (" + strings.Join(ids(all), ",") + ")"
}

// choose picks devices by their names: an ID, an index, a UUID or the unique beginning of one. A
// part of a device (MIG-...), which the list does not show, is taken at its word.
func choose(all []Device, names string) ([]Device, error) {
	var out []Device
	for _, name := range split(names) {
		d, err := one(all, name)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(out, func(o Device) bool { return o.key() == d.key() }) {
			return nil, fmt.Errorf("device %s is named twice", name)
		}
		out = append(out, d)
	}
	return out, nil
}

func one(all []Device, name string) (Device, error) {
	var found []Device
	for _, d := range all {
		if d.ID == name || d.Index == name || d.UUID == name {
			found = []Device{d}
			break
		}
		if strings.HasPrefix(name, "GPU-") && strings.HasPrefix(d.UUID, name) {
			found = append(found, d)
		}
	}
	switch {
	case len(found) == 1:
		found[0].ID = name
		return found[0], nil
	case len(found) > 1:
		return Device{}, fmt.Errorf("%s may be %s or %s", name, found[0].UUID, found[1].UUID)
	case strings.HasPrefix(name, "MIG-"):
		return Device{ID: name, UUID: name}, nil
	default:
		return Device{}, fmt.Errorf("there is no device %s, there are %d%s", name, len(all), list(all))
	}
}
