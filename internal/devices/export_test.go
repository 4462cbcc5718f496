package devices

import "time"

// Space of the pretended devices, Keys in the kernel's table, and the name of a hold that a job would have.
func (inv Inventory) Space() string { return inv.Devices[0].space }

func (inv Inventory) Keys() []string {
	var out []string
	for _, d := range inv.Devices {
		out = append(out, d.key())
	}
	return out
}

func (inv Inventory) HoldName(job string) string {
	return hold{key: inv.Devices[0].key(), job: digest(job), since: time.Unix(1, 0), nonce: "x", title: job}.name()
}
