package devices

import (
	"cmp"
	"slices"
	"strconv"
)

// byIndex orders devices as the tool numbers them.
func byIndex(a, b Device) int {
	x, _ := strconv.Atoi(a.Index)
	y, _ := strconv.Atoi(b.Index)
	return cmp.Compare(x, y)
}

// distinct orders devices as the tool numbers them, and gives those that share an id one of their own each.
func distinct(all []Device) []Device {
	slices.SortFunc(all, byIndex)
	count := map[string]int{}
	for _, d := range all {
		count[d.UUID]++
	}
	for i, d := range all {
		if count[d.UUID] > 1 {
			all[i].UUID += "/" + d.Index
		}
	}
	return all
}
