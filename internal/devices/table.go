package devices

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Holder is a process that has locked a device.
type Holder struct {
	Process
	Job   string    // as it calls itself; empty where it does not say
	Since time.Time // zero where it is not known
	job   string    // digest
}

// String names the holder: "job train-1234abcd, pid 4711 (alice, uid 1001, since 2026-12-01 14:03:05)".
func (h Holder) String() string {
	if h.Job == "" {
		return h.describe(h.Since)
	}
	return "job " + h.Job + ", " + h.describe(h.Since)
}

// describe names the process with more about it, and since when it has or wants something.
func (p Process) describe(since time.Time, parts ...string) string {
	if p.UID != unknown {
		parts = append(parts, owner(p.UID))
	}
	if !since.IsZero() {
		parts = append(parts, "since "+since.Local().Format(time.DateTime))
	}
	if p.Ended {
		parts = append(parts, "ended: its workers live on")
	}
	who := "pid " + strconv.Itoa(p.PID)
	if p.PID == 0 {
		who = "a process that only root can see"
	}
	if len(parts) == 0 {
		return who
	}
	return who + " (" + strings.Join(parts, ", ") + ")"
}

// owner names a user: "alice, uid 1001".
func owner(uid int) string {
	if name := userName(uid); name != "" {
		return name + ", uid " + strconv.Itoa(uid)
	}
	return "uid " + strconv.Itoa(uid)
}

// UserName is the name of the process's user; empty where the machine has none for the uid, or it is not known.
func (p Process) UserName() string { return userName(p.UID) }

func userName(uid int) string {
	u, err := user.LookupId(strconv.Itoa(uid))
	if err != nil {
		return ""
	}
	return printable(u.Username, 32)
}

// Waiter is a process in the queue.
type Waiter struct {
	Process
	Job   string // as it calls itself
	Want  int    // how many devices
	Since time.Time
	asked int64 // ms since boot
	nonce string
	keys  map[string]bool // of the devices of which it wants some
}

// String names the waiter as a Holder.
func (w Waiter) String() string {
	return Holder{Process: w.Process, Job: w.Job, Since: w.Since}.String()
}

// table is what the kernel's table says about some devices.
type table struct {
	holders map[string][]Holder // by key
	waiters []Waiter            // in the order in which they asked
}

// The most names of one device that are looked at. A user who adds more has a process that is named already.
const (
	mostHolds = 16
	mostWaits = 256
)

// look reads the kernel's table for those devices.
func look(devices []Device) (table, error) {
	keys := map[string]bool{}
	for _, d := range devices {
		keys[d.key()] = true
	}
	all, err := entries()
	if err != nil {
		return table{}, err
	}
	t := table{holders: map[string][]Holder{}}
	waiters := map[string]*Waiter{}
	waits := map[string]int{}
	for _, e := range all {
		h, isHold := parseHold(e.name)
		w, isWait := parseWait(e.name)
		switch {
		case isHold && keys[h.key] && len(t.holders[h.key]) < mostHolds:
			err = t.addHold(h, e)
		case isWait && keys[w.key] && waits[w.key] < mostWaits:
			waits[w.key]++
			err = addWait(waiters, w, e)
		}
		if err != nil {
			return table{}, err
		}
	}
	for _, e := range all { // a lock without a word of whose it is
		if key, ok := strings.CutPrefix(e.name, lockName); ok && keys[key] && len(t.holders[key]) == 0 {
			if err := t.addLock(key, e); err != nil {
				return table{}, err
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(waiters)) {
		t.waiters = append(t.waiters, *waiters[key])
	}
	slices.SortStableFunc(t.waiters, func(a, b Waiter) int { return before(a, b) })
	return t, nil
}

// addHold adds a hold for which a process answers.
func (t *table) addHold(h hold, e entry) error {
	who, is, err := ask(e.name)
	if err != nil || is == nobody {
		return wrapAsk(e.name, err)
	}
	if who.UID == unknown {
		who.UID = ownerOf(e.inode)
	}
	since := h.since
	if now := time.Now(); since.After(now) {
		since = now
	}
	if !who.Start.IsZero() && who.Start.After(since.Add(2*time.Second)) { // the pid is another's by now
		who.Ended, who.Start = true, time.Time{}
	}
	t.holders[h.key] = append(t.holders[h.key], Holder{Process: who, Job: h.title, Since: since, job: h.job})
	return nil
}

// addLock adds the process that has the lock itself, where it has announced nothing: one between two steps, or one
// that is not ours.
func (t *table) addLock(key string, e entry) error {
	who, is, err := ask(e.name)
	if err != nil {
		return wrapAsk(e.name, err)
	}
	if is == nobody || who.UID == unknown {
		if who = (Process{UID: ownerOf(e.inode), PID: processOf(e.inode)}); who.UID == unknown && who.PID == 0 {
			return nil // it has ended meanwhile
		}
	}
	t.holders[key] = append(t.holders[key], Holder{Process: who, Since: who.Start})
	return nil
}

// addWait adds a place in the queue. Nobody can have asked before he began.
func addWait(waiters map[string]*Waiter, w wait, e entry) error {
	who, is, err := ask(e.name)
	if err != nil || is == nobody {
		return wrapAsk(e.name, err)
	}
	if who.UID == unknown {
		who.UID = ownerOf(e.inode)
	}
	id := fmt.Sprintf("%s %d %d", w.nonce, who.UID, who.PID)
	if waiters[id] == nil {
		asked := w.asked
		if began, ok := startOf(who.PID); ok {
			asked = max(asked, began)
		}
		since := time.Now().Add(time.Duration(asked-sinceBoot()) * time.Millisecond)
		waiters[id] = &Waiter{Process: who, Job: w.title, Want: w.want, Since: since, asked: asked, nonce: w.nonce, keys: map[string]bool{}}
	}
	waiters[id].keys[w.key] = true
	return nil
}

func wrapAsk(name string, err error) error {
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return fmt.Errorf("ask who has %s: %w", name, err)
}

func before(a, b Waiter) int {
	return cmp.Or(cmp.Compare(a.asked, b.asked), cmp.Compare(a.UID, b.UID), cmp.Compare(a.PID, b.PID), cmp.Compare(a.nonce, b.nonce))
}
