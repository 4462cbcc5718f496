// Package devices knows the accelerators of this machine: which there are, who uses them, and which
// of them are this job's. It asks nvidia-smi in a child process, so that a sick driver can hang or
// crash that and not us; a machine without it has no devices, which is no error. Claim locks devices
// for a job machine-wide, so that two jobs never share one.
package devices

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Device is one accelerator.
type Device struct {
	ID     string // what CUDA_VISIBLE_DEVICES calls it: an index or a UUID, as the user wrote it
	Index  string // nvidia-smi's index; empty when nvidia-smi does not list it
	UUID   string // empty when nvidia-smi does not list it
	Name   string // of the model
	Memory int64  // bytes
	Fake   bool
}

// key names the device machine-wide.
func (d Device) key() string {
	switch {
	case d.Fake:
		return "fake-" + d.ID
	case d.UUID != "":
		return d.UUID
	default:
		return "gpu-" + d.ID
	}
}

// Options say which devices a job may have.
type Options struct {
	GPUs    string   // "4,5": these, by index or UUID; "N": any N that are free; "": as many as Need
	Need    int      // how many devices the job's roles reserve; used when GPUs is empty
	Fake    int      // pretend that there are so many, named "0", "1", ..., and no others
	Environ []string // KEY=VALUE; a CUDA_VISIBLE_DEVICES in it is the inventory
}

// Inventory is what a job may choose from.
type Inventory struct {
	Devices []Device // in the order in which they are given out
	Want    int      // how many of them the job is to have
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

// patience is how long nvidia-smi may take. It is slow without persistence mode and hangs on a
// device that fell off its bus.
const patience = 15 * time.Second

// Find takes the inventory. An error says which wish cannot be met: a device that is not there, more
// devices than there are, or a nvidia-smi that does not answer.
func Find(ctx context.Context, o Options) (Inventory, error) {
	all, err := find(ctx, o)
	if err != nil {
		return Inventory{}, err
	}
	wish := strings.TrimSpace(o.GPUs)
	if wish == "" {
		return Inventory{Devices: all, Want: min(max(o.Need, 0), len(all))}, nil
	}
	if n, err := strconv.Atoi(wish); err == nil {
		if n < 0 || n > len(all) {
			return Inventory{}, fmt.Errorf("find %d GPUs: there are %d%s", n, len(all), list(all))
		}
		return Inventory{Devices: all, Want: n}, nil
	}
	chosen, err := choose(all, wish)
	if err != nil {
		return Inventory{}, fmt.Errorf("find GPUs %s: %w", wish, err)
	}
	return Inventory{Devices: chosen, Want: len(chosen)}, nil
}

func list(all []Device) string {
	if len(all) == 0 {
		return ""
	}
	return " (" + strings.Join(ids(all), ",") + ")"
}

func find(ctx context.Context, o Options) ([]Device, error) {
	if o.Fake < 0 {
		return nil, fmt.Errorf("pretend %d GPUs: less than none", o.Fake)
	}
	if o.Fake > 0 {
		fakes := make([]Device, o.Fake)
		for i := range fakes {
			id := strconv.Itoa(i)
			fakes[i] = Device{ID: id, Index: id, Name: "fake", Fake: true}
		}
		return fakes, nil
	}
	visible, given := inherited(o.Environ)
	if given && visible == "" {
		return nil, nil
	}
	all, err := listDevices(ctx)
	if err != nil || !given {
		return all, err
	}
	if len(all) == 0 { // nobody to ask: the environment is all that is known
		return namesOnly(visible), nil
	}
	chosen, err := choose(all, visible)
	if err != nil {
		return nil, fmt.Errorf("take CUDA_VISIBLE_DEVICES=%s as the inventory: %w", visible, err)
	}
	return chosen, nil
}

// inherited returns CUDA_VISIBLE_DEVICES and whether it is set. What stands from the first negative
// number on is invisible, as CUDA has it.
func inherited(environ []string) (string, bool) {
	value, given := "", false
	for _, kv := range environ {
		if v, ok := strings.CutPrefix(kv, "CUDA_VISIBLE_DEVICES="); ok {
			value, given = v, true
		}
	}
	var names []string
	for _, name := range split(value) {
		if strings.HasPrefix(name, "-") || name == "NoDevFiles" {
			break
		}
		names = append(names, name)
	}
	return strings.Join(names, ","), given
}

func split(value string) []string {
	var out []string
	for name := range strings.SplitSeq(value, ",") {
		if name = strings.TrimSpace(name); name != "" {
			out = append(out, name)
		}
	}
	return out
}

func namesOnly(visible string) []Device {
	var out []Device
	for _, name := range split(visible) {
		if !slices.Contains(ids(out), name) {
			out = append(out, Device{ID: name})
		}
	}
	return out
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

// listDevices asks nvidia-smi for all devices of the machine; without nvidia-smi there are none.
func listDevices(ctx context.Context) ([]Device, error) {
	rows, err := ask(ctx, "--query-gpu=index,uuid,name,memory.total", 4)
	if err != nil {
		return nil, fmt.Errorf("list GPUs: %w", err)
	}
	var out []Device
	for _, r := range rows {
		out = append(out, Device{ID: r[0], Index: r[0], UUID: r[1], Name: r[2], Memory: mebibytes(r[3])})
	}
	return out, nil
}

// mebibytes reads "81559 MiB"; what cannot be read is 0, since memory is shown and never reckoned with.
func mebibytes(s string) int64 {
	number, _, _ := strings.Cut(s, " ")
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return 0
	}
	return n << 20
}

// ask runs one nvidia-smi query and returns its rows of the given number of fields. Without
// nvidia-smi, or with one that finds no device, there are no rows.
func ask(ctx context.Context, query string, fields int) ([][]string, error) {
	path, err := exec.LookPath("nvidia-smi")
	if err != nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, query, "--format=csv,noheader")
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		switch {
		case ctx.Err() != nil:
			return nil, fmt.Errorf("ask nvidia-smi %s: no answer: %w", query, ctx.Err())
		case errors.As(err, &exit):
			said := strings.TrimSpace(string(out) + string(exit.Stderr))
			if strings.Contains(said, "No devices were found") {
				return nil, nil
			}
			return nil, fmt.Errorf("ask nvidia-smi %s: %w: %s", query, err, said)
		default:
			return nil, fmt.Errorf("ask nvidia-smi %s: %w", query, err)
		}
	}
	r := csv.NewReader(strings.NewReader(string(out)))
	r.TrimLeadingSpace, r.FieldsPerRecord = true, -1
	rows, err := r.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("read answer of nvidia-smi %s: %w", query, err)
	}
	return slices.DeleteFunc(rows, func(row []string) bool { return len(row) != fields }), nil
}
