package devices

import (
	"context"
	"fmt"
	"slices"
)

// Seen is a device with those who have it.
type Seen struct {
	Device
	Holders []Holder // that have locked it
	Users   []User   // that use it, as the tool says
}

// Queued is a waiter with the devices of which it wants some.
type Queued struct {
	Waiter
	Devices []string // IDs
}

// Survey says who has the devices of an inventory and who waits for them, in the order of asking. The error is about
// the users, where no tool can say who they are; the rest is known.
func Survey(ctx context.Context, inv Inventory) ([]Seen, []Queued, error) {
	t, err := look(inv.Devices)
	if err != nil {
		return nil, nil, fmt.Errorf("read who has devices: %w", err)
	}
	var users []User
	if slices.ContainsFunc(inv.Devices, func(d Device) bool { return !d.Fake }) {
		users, err = Users(ctx)
	}
	var seen []Seen
	for _, d := range inv.Devices {
		seen = append(seen, Seen{Device: d, Holders: t.holders[d.key()], Users: foreign(d, users, nil)})
	}
	var queue []Queued
	for _, w := range t.waiters {
		q := Queued{Waiter: w}
		for _, d := range inv.Devices {
			if w.keys[d.key()] {
				q.Devices = append(q.Devices, d.ID)
			}
		}
		queue = append(queue, q)
	}
	return seen, queue, err
}
