package devices

import (
	"fmt"
	"slices"
	"strings"
)

// The variables by which a process is shown some of a machine's devices.
const (
	CUDA   = "CUDA_VISIBLE_DEVICES"
	HIP    = "HIP_VISIBLE_DEVICES"
	ROCR   = "ROCR_VISIBLE_DEVICES"
	Ascend = "ASCEND_RT_VISIBLE_DEVICES"
)

// Variables are all of them.
var Variables = []string{CUDA, HIP, ROCR, Ascend}

// visibleNames returns the names in a variable and whether it is set. What stands from the first negative number on
// is invisible, as CUDA has it.
func visibleNames(environ []string, variable string) (names []string, given bool) {
	value := ""
	for _, kv := range environ {
		if v, ok := strings.CutPrefix(kv, variable+"="); ok {
			value, given = v, true
		}
	}
	for _, name := range split(value) {
		if strings.HasPrefix(name, "-") || name == "NoDevFiles" {
			break
		}
		names = append(names, name)
	}
	return names, given
}

// narrow picks the devices that a variable names.
func narrow(all []Device, variable string, names []string, given bool) ([]Device, error) {
	if !given {
		return all, nil
	}
	chosen, err := choose(all, strings.Join(names, ","))
	if err != nil {
		return nil, fmt.Errorf("take %s=%s as the inventory: %w", variable, strings.Join(names, ","), err)
	}
	return chosen, nil
}

// None is what a variable says to show no device.
const None = "-1"

// namesOnly are devices of which only their names are known.
func namesOnly(names []string) []Device {
	var out []Device
	for _, name := range names {
		if !slices.Contains(ids(out), name) {
			out = append(out, Device{ID: name})
		}
	}
	return out
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
