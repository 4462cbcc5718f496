package devices

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ClaimOptions say for whom devices are claimed.
type ClaimOptions struct {
	Dir  string             // of the lock files: RUNTIME/devices; made if it is missing
	Job  string             // uid of the job
	Ours func(pid int) bool // whether a process that uses a device is the job's own; nil: none is
	Wait time.Duration      // how long to wait for devices that others use (--wait-for-gpus)
	Say  func(err error)    // told once why it waits; may be nil
}

// Claim is the devices that a job holds. They stay its own until Close, or the end of every process
// that has the Files.
type Claim struct {
	Devices []Device
	files   []*os.File
	options ClaimOptions
}

// IDs returns the devices as CUDA_VISIBLE_DEVICES names them.
func (c *Claim) IDs() []string { return ids(c.Devices) }

// Files returns the locks. A program that inherits them keeps the devices locked after its parent
// has died, which closes the gap between two lives of a controller.
func (c *Claim) Files() []*os.File { return slices.Clone(c.files) }

// Close gives the devices back.
func (c *Claim) Close() error {
	var errs []error
	for _, f := range c.files {
		errs = append(errs, f.Close())
	}
	c.files, c.Devices = nil, nil
	return errors.Join(errs...)
}

// Busy says that too few devices are free, and who has the others.
type Busy struct {
	Want, Free int
	Taken      []string // "device 4 is used by pid 4711 (python3)"
}

// Error returns one sentence.
func (e *Busy) Error() string {
	return fmt.Sprintf("claim %d devices: %d are free: %s", e.Want, e.Free, strings.Join(e.Taken, ", "))
}

// again is how often devices that others use are looked at while waiting for them.
const again = time.Second

// Take claims as many devices of the inventory as it wants, the first that neither another job has
// locked nor a stranger uses. Where too few are free it waits up to Wait, and then the error is a
// *Busy that names the holders.
func Take(ctx context.Context, inv Inventory, o ClaimOptions) (*Claim, error) {
	if inv.Want == 0 {
		return &Claim{}, nil
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("claim devices: %w", err)
	}
	over := time.NewTimer(o.Wait)
	defer over.Stop()
	tick := time.NewTicker(again)
	defer tick.Stop()
	for first := true; ; first = false {
		c, err := takeNow(ctx, inv, o)
		var busy *Busy
		if err == nil || !errors.As(err, &busy) || o.Wait <= 0 {
			return c, err
		}
		if first && o.Say != nil {
			o.Say(err)
		}
		select {
		case <-tick.C:
		case <-over.C:
			return nil, fmt.Errorf("waited %s: %w", o.Wait, err)
		case <-ctx.Done():
			return nil, fmt.Errorf("%w, while waiting: %w", ctx.Err(), err)
		}
	}
}

// takeNow claims all that is wanted or nothing.
func takeNow(ctx context.Context, inv Inventory, o ClaimOptions) (*Claim, error) {
	var users []User
	if slices.ContainsFunc(inv.Devices, func(d Device) bool { return !d.Fake }) {
		var err error
		if users, err = Users(ctx); err != nil {
			return nil, fmt.Errorf("claim devices: %w", err)
		}
	}
	c, busy := &Claim{options: o}, &Busy{Want: inv.Want}
	for _, d := range inv.Devices {
		if len(c.Devices) == inv.Want {
			return c, nil
		}
		if who := strangers(d, users, o.Ours); who != "" {
			busy.Taken = append(busy.Taken, fmt.Sprintf("device %s is used by %s", d.ID, who))
			continue
		}
		f, holder, err := lock(filepath.Join(o.Dir, d.key()), o.Job)
		switch {
		case err != nil:
			_ = c.Close()
			return nil, fmt.Errorf("claim device %s: %w", d.ID, err)
		case holder != "":
			busy.Taken = append(busy.Taken, fmt.Sprintf("device %s is locked by %s", d.ID, holder))
			continue
		case f != nil:
			c.files = append(c.files, f)
		}
		c.Devices = append(c.Devices, d)
	}
	if len(c.Devices) == inv.Want {
		return c, nil
	}
	busy.Free = len(c.Devices)
	_ = c.Close()
	return nil, busy
}

// strangers names those who use the device and are not ours.
func strangers(d Device, users []User, ours func(int) bool) string {
	var out []string
	for _, u := range users {
		if u.UUID == d.UUID && (ours == nil || !ours(u.PID)) {
			out = append(out, u.String())
		}
	}
	return strings.Join(out, " and ")
}

// lock takes the lock file and writes into it who has it. If another job has it, holder says who. If
// this job has it already, in a process that outlived the one which took it, there is no file and no
// holder.
func lock(path, job string) (f *os.File, holder string, err error) {
	f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, "", err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		defer f.Close()
		return nil, readHolder(f, job), nil
	}
	if err == nil {
		err = errors.Join(f.Truncate(0), write(f, fmt.Sprintf("%d %s\n", os.Getpid(), job)))
	}
	if err != nil {
		_ = f.Close()
		return nil, "", fmt.Errorf("lock %s: %w", path, err)
	}
	return f, "", nil
}

func write(f *os.File, s string) error {
	_, err := f.WriteAt([]byte(s), 0)
	return err
}

// readHolder returns who wrote the lock file, and nothing when it is the job itself.
func readHolder(f *os.File, job string) string {
	b := make([]byte, 256)
	n, _ := f.ReadAt(b, 0)
	var pid int
	var owner string
	if _, err := fmt.Sscanf(string(b[:n]), "%d %s", &pid, &owner); err != nil {
		return "another job that is just starting"
	}
	if owner == job {
		return ""
	}
	return fmt.Sprintf("job %s (pid %d)", owner, pid)
}
