package devices

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Claim is the devices that a job holds. They stay its own until Close, or the end of every process
// that has the Files.
type Claim struct {
	Devices []Device

	mu    sync.Mutex
	seats []seat
	ended bool
	end   chan struct{}
	idle  sync.WaitGroup
}

// seat is what a claim has of one device.
type seat struct {
	key  string
	lock *os.File // nil while a process of an earlier controller of the job has it
	hold *os.File
}

// IDs returns the devices as the variable of their kind names them.
func (c *Claim) IDs() []string { return ids(c.Devices) }

// Files returns the locks as they are now. A program that inherits them keeps the devices locked after its parent
// has died, which closes the gap between two lives of a controller.
func (c *Claim) Files() []*os.File {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.files()
}

func (c *Claim) files() []*os.File {
	var out []*os.File
	for _, s := range c.seats {
		if s.lock != nil {
			out = append(out, s.lock)
		}
		out = append(out, s.hold)
	}
	return out
}

// Close gives the devices back. A second Close does nothing.
func (c *Claim) Close() error {
	c.mu.Lock()
	if !c.ended && c.end != nil {
		close(c.end)
	}
	c.ended = true
	c.mu.Unlock()
	c.idle.Wait()
	var errs []error
	for _, f := range c.files() {
		errs = append(errs, f.Close())
	}
	c.seats, c.Devices = nil, nil
	return errors.Join(errs...)
}

// tendEvery is how often the holders of a device look after what says so.
const tendEvery = time.Second

// tend answers who asks until Close, has the kernel name this process, and takes over the locks that an earlier
// controller of the job has left with its services.
func (c *Claim) tend() {
	c.end = make(chan struct{})
	c.idle.Go(func() {
		tick := time.NewTicker(tendEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				c.tendNow()
			case <-c.end:
				return
			}
		}
	})
}

func (c *Claim) tendNow() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.seats {
		if c.seats[i].lock == nil {
			c.seats[i].lock, _ = announce(lockName + c.seats[i].key) // it is still with a service of ours
		}
	}
	for _, f := range c.files() {
		fd := int(f.Fd())
		drain(fd)
		if who, err := named(fd); err == nil && who.PID != os.Getpid() {
			_ = unix.Listen(fd, backlog)
		}
	}
}

// seize takes the devices, all or none. had are those of the job itself, in processes that outlived the controller which
// took them: their locks are taken over later. conflict says who was faster, and for which device.
func seize(devices []Device, had map[string]bool, job string, mine func(Holder) bool) (c *Claim, conflict []Taken, err error) {
	c = &Claim{Devices: slices.Clone(devices)}
	defer func() {
		if err != nil || conflict != nil {
			_ = c.Close()
			c = nil
		}
	}()
	h := hold{job: digest(job), since: time.Now(), nonce: nonce(), title: title(job)}
	for _, d := range devices {
		s := seat{key: d.key()}
		h.key = s.key
		s.lock, err = announce(lockName + s.key)
		if errors.Is(err, unix.EADDRINUSE) {
			if !had[s.key] {
				return c, []Taken{{Device: d.ID, Holders: []Holder{lockedBy(s.key)}}}, nil
			}
			err = nil
		}
		if err == nil {
			s.hold, err = announce(h.name())
		}
		if err != nil {
			if s.lock != nil {
				_ = s.lock.Close()
			}
			return c, nil, fmt.Errorf("claim device %s: %w", d.ID, err)
		}
		c.seats = append(c.seats, s)
	}
	t, err := look(devices)
	if err != nil {
		return c, nil, fmt.Errorf("claim devices: %w", err)
	}
	for _, d := range devices { // who has one of which the lock is not with him: the next controller of a job
		if others := slices.DeleteFunc(slices.Clone(t.holders[d.key()]), mine); len(others) > 0 {
			conflict = append(conflict, Taken{Device: d.ID, Holders: others})
		}
	}
	if conflict == nil {
		c.tend()
	}
	return c, conflict, nil
}

// lockedBy is who has the lock of a device.
func lockedBy(key string) Holder {
	who, is, err := ask(lockName + key)
	if err == nil && is == held {
		return Holder{Process: who, Since: who.Start}
	}
	return Holder{Process: Process{UID: unknown}}
}

// Taken is a device that cannot be had now.
type Taken struct {
	Device  string
	Holders []Holder // that have locked it
	Users   []User   // that use it, and are not the job's
	Ill     string   // what the tool says of its health
}

// String says who has the device.
func (t Taken) String() string { return "device " + t.Device + " is " + t.why() }

// why it cannot be had.
func (t Taken) why() string {
	var who []string
	for _, h := range t.Holders {
		who = append(who, "locked by "+h.String())
	}
	for _, u := range t.Users {
		who = append(who, "used by "+u.Describe())
	}
	if t.Ill != "" {
		who = append(who, "ill: "+t.Ill)
	}
	return strings.Join(who, " and ")
}

// sentences says who has devices, those together that one has.
func sentences(all []Taken) []string {
	var whys []string
	names := map[string][]string{}
	for _, t := range all {
		why := t.why()
		if names[why] == nil {
			whys = append(whys, why)
		}
		names[why] = append(names[why], t.Device)
	}
	for i, why := range whys {
		if n := names[why]; len(n) > 1 {
			whys[i] = "devices " + strings.Join(n, ",") + " are " + why
		} else {
			whys[i] = "device " + n[0] + " is " + why
		}
	}
	return whys
}
