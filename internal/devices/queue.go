package devices

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ClaimOptions say for whom devices are claimed.
type ClaimOptions struct {
	Job  string             // uid of the job
	Ours func(pid int) bool // whether a process that uses a device is the job's own; nil: none is
	Wait time.Duration      // how long to wait in the queue for devices that others have (--wait-for-gpus)
	Say  func(*Busy)        // told why it waits, when it begins to and when its place changes; may be nil
}

// Busy says that too few devices are free, and who has the others.
type Busy struct {
	Want, Free, Of int
	Taken          []Taken
	Ahead          []Waiter // who asked for some of the devices before and still waits
	Queue          int      // how many wait for some of them, with those ahead and us where we wait
	Trouble        error    // why it is not known who uses them, while we wait
}

// Error returns one sentence.
func (e *Busy) Error() string {
	text := fmt.Sprintf("claim %d of %d devices: %d free", e.Want, e.Of, e.Free)
	if len(e.Ahead) > 0 {
		text += fmt.Sprintf(", for which %d wait already: %s", len(e.Ahead), list3(e.Ahead))
	}
	if len(e.Taken) > 0 {
		text += ": " + list3(sentences(e.Taken))
	}
	if e.Trouble != nil {
		text += ": " + e.Trouble.Error()
	}
	return text
}

// Place says where in the queue we are, and for whom we wait: "place 2 of 3 in the queue for 2 devices; waits for ...".
func (e *Busy) Place() string {
	text := fmt.Sprintf("place %d of %d in the queue for %d %s", len(e.Ahead)+1, max(e.Queue, len(e.Ahead)+1), e.Want, plural(e.Want, "device", "devices"))
	var who []string
	for _, t := range e.Taken {
		for _, h := range t.Holders {
			who = append(who, h.String())
		}
		for _, u := range t.Users {
			who = append(who, u.Describe())
		}
		if t.Ill != "" {
			who = append(who, t.String())
		}
	}
	for _, w := range e.Ahead {
		who = append(who, w.String())
	}
	if e.Trouble != nil {
		who = append(who, "word of who uses them: "+printable(e.Trouble.Error(), 300))
	}
	var once []string
	for _, w := range who {
		if !slices.Contains(once, w) {
			once = append(once, w)
		}
	}
	return text + "; waits for " + list3(once)
}

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// list3 names the first few.
func list3[T any](all []T) string {
	const few = 8
	var out []string
	for _, x := range all[:min(len(all), few)] {
		out = append(out, fmt.Sprint(x))
	}
	if more := len(all) - few; more > 0 {
		out = append(out, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(out, "; ")
}

// How often a waiter looks at the locks, and a tool is asked who uses the devices.
const (
	lookEvery = 250 * time.Millisecond
	askEvery  = time.Second
)

// Take claims as many devices of the inventory as it wants, the first that neither another job has
// locked nor a foreign process uses. A job that waits for some of these devices and asked earlier gets them first. Where too
// few are free it waits up to Wait, in the order of asking; then the error is a *Busy that names who has them.
func Take(ctx context.Context, inv Inventory, o ClaimOptions) (*Claim, error) {
	if inv.Want == 0 {
		return &Claim{}, nil
	}
	s := &seeker{inv: inv, o: o, me: wait{asked: sinceBoot(), nonce: nonce(), want: inv.Want, title: title(o.Job)}}
	if o.Wait <= 0 {
		return s.try(ctx)
	}
	c, err := s.try(ctx)
	if busy := new(Busy); err == nil || !errors.As(err, &busy) {
		return c, err
	}
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	return s.wait(ctx)
}

// seeker is who wants devices.
type seeker struct {
	inv     Inventory
	o       ClaimOptions
	me      wait
	tickets []*os.File
	users   []User
	unknown error     // why users is not known
	askedAt time.Time // when users was asked; zero: never
}

// enter takes a place in the queue for every device of the inventory.
func (s *seeker) enter() error {
	for _, d := range s.inv.Devices {
		w := s.me
		w.key = d.key()
		f, err := announce(w.name())
		if err != nil {
			s.leave()
			return fmt.Errorf("wait for device %s: %w", d.ID, err)
		}
		s.tickets = append(s.tickets, f)
	}
	return nil
}

func (s *seeker) leave() {
	for _, f := range s.tickets {
		_ = f.Close()
	}
	s.tickets = nil
}

// wait waits for its turn.
func (s *seeker) wait(ctx context.Context) (*Claim, error) {
	over := time.NewTimer(s.o.Wait)
	defer over.Stop()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	said := ""
	for {
		c, err := s.try(ctx)
		busy := new(Busy)
		if err == nil || !errors.As(err, &busy) {
			return c, err
		}
		if text := busy.Place(); text != said && s.o.Say != nil {
			said = text
			s.o.Say(busy)
		}
		for _, f := range s.tickets {
			drain(int(f.Fd()))
		}
		select {
		case <-tick.C:
		case <-over.C:
			return nil, fmt.Errorf("waited %s: %w", s.o.Wait, err)
		case <-ctx.Done():
			return nil, fmt.Errorf("%w, while waiting: %w", ctx.Err(), err)
		}
	}
}

// try claims all that is wanted or nothing. A tool is asked only where the locks let it have the devices.
func (s *seeker) try(ctx context.Context) (*Claim, error) {
	if _, _, err := s.free(nil); err != nil {
		return nil, err
	}
	users, err := s.askUsers(ctx)
	switch {
	case err != nil && len(s.tickets) > 0: // it may answer before the waiting is over
		return nil, &Busy{Want: s.inv.Want, Of: len(s.inv.Devices), Queue: 1, Trouble: err}
	case err != nil:
		return nil, fmt.Errorf("claim devices: %w", err)
	}
	defer turn(ctx)()
	var faster []Taken
	for range len(s.inv.Devices) + 1 { // one that did not wait for its turn may be faster, and leave others
		free, had, err := s.free(users)
		if err != nil {
			return nil, err
		}
		c, conflict, err := seize(free, had, s.o.Job, s.mine)
		if err != nil || conflict == nil {
			return c, err
		}
		faster = conflict
	}
	return nil, &Busy{Want: s.inv.Want, Free: s.inv.Want - len(faster), Of: len(s.inv.Devices), Taken: faster, Queue: 1}
}

// mine says whether a holder is the job itself: by its uid, which the kernel says, and its name.
func (s *seeker) mine(h Holder) bool { return h.UID == os.Geteuid() && h.job == digest(s.o.Job) }

// free returns the devices that can be had, as many as are wanted, and the keys of those that the job has already; or a
// *Busy.
func (s *seeker) free(users []User) (free []Device, had map[string]bool, err error) {
	t, err := look(s.inv.Devices)
	if err != nil {
		return nil, nil, fmt.Errorf("claim devices: %w", err)
	}
	busy := &Busy{Want: s.inv.Want, Of: len(s.inv.Devices)}
	had = map[string]bool{}
	for _, d := range s.inv.Devices {
		holders := t.holders[d.key()]
		taken := Taken{Device: d.ID, Ill: d.Ill, Holders: slices.DeleteFunc(slices.Clone(holders), s.mine), Users: foreign(d, users, s.o.Ours)}
		if len(taken.Holders) > 0 || len(taken.Users) > 0 || d.Ill != "" {
			busy.Taken = append(busy.Taken, taken)
			continue
		}
		if len(holders) > 0 {
			had[d.key()] = true
		}
		free = append(free, d)
	}
	for _, w := range t.waiters {
		busy.Queue++
		if me := w.nonce == s.me.nonce && w.PID == os.Getpid(); !me && w.asked <= s.me.asked {
			busy.Ahead = append(busy.Ahead, w)
		}
	}
	busy.Free = len(free)
	if len(free) < s.inv.Want || len(busy.Ahead) > 0 && len(had) < s.inv.Want { // what the job has already is not queued for
		return nil, nil, busy
	}
	return free[:s.inv.Want], had, nil
}

// foreign returns those who use the device and are not the job's.
func foreign(d Device, users []User, ours func(int) bool) []User {
	return slices.DeleteFunc(slices.Clone(users), func(u User) bool { return d.UUID == "" || u.UUID != d.UUID || ours != nil && ours(u.PID) })
}

// askUsers asks the tools who uses the devices, not more often than askEvery.
func (s *seeker) askUsers(ctx context.Context) ([]User, error) {
	if !slices.ContainsFunc(s.inv.Devices, func(d Device) bool { return !d.Fake }) {
		return nil, nil
	}
	if !s.askedAt.IsZero() && time.Since(s.askedAt) < askEvery {
		return s.users, s.unknown
	}
	s.users, s.unknown = Users(ctx)
	s.askedAt = time.Now()
	return s.users, s.unknown
}

// turnTime is how long one waits for another that is taking devices in this moment. What keeps two from having the
// same one is the lock: the turn keeps two that want several from taking half of them each.
const turnTime = 5 * time.Second

// turn waits for its turn to take devices, and returns what ends it.
func turn(ctx context.Context) (done func()) {
	over := time.NewTimer(turnTime)
	defer over.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		f, err := announce(turnName)
		if err == nil {
			return func() { _ = f.Close() }
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			return func() {}
		}
		select {
		case <-tick.C:
		case <-over.C:
			return func() {}
		case <-ctx.Done():
			return func() {}
		}
	}
}
