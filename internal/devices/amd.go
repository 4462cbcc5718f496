package devices

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// amd asks rocm-smi. HIP counts within what ROCR shows it, and reads CUDA_VISIBLE_DEVICES where its own variable
// is not set. rocm-smi names a device by its index, which is HIP's too unless someone has reordered the devices.
type amd struct{}

func (amd) name() string { return "rocm-smi" }

// variable is the innermost that is set, since that is what others of its kind have given up to; else HIP's own,
// which frameworks read.
func (amd) variable(environ []string) string {
	_, hip := visibleNames(environ, HIP)
	_, cuda := visibleNames(environ, CUDA)
	_, rocr := visibleNames(environ, ROCR)
	if rocr && !hip && !cuda {
		return ROCR
	}
	return HIP
}

func (amd) list(ctx context.Context, ask asker) ([]Device, error) {
	said, err := ask(ctx, "--showuniqueid", "--showproductname", "--showbus", "--showmeminfo", "vram", "--json")
	if err != nil {
		return nil, err
	}
	return parseROCmList(said)
}

func (amd) inherited(all []Device, environ []string) ([]Device, error) {
	names, given := visibleNames(environ, ROCR)
	all, err := narrow(all, ROCR, names, given)
	if err != nil {
		return nil, err
	}
	inner := HIP
	hip, byHIP := visibleNames(environ, HIP)
	if !byHIP {
		inner = CUDA
		hip, byHIP = visibleNames(environ, CUDA)
	}
	if !byHIP {
		return all, nil
	}
	if given { // HIP counts what ROCR has left
		all = slices.Clone(all)
		for i := range all {
			all[i].ID, all[i].Index = strconv.Itoa(i), strconv.Itoa(i)
		}
	}
	return narrow(all, inner, hip, byHIP)
}

func (amd) users(ctx context.Context, ask asker) ([]User, error) {
	said, err := ask(ctx, "--showpidgpus")
	if err != nil {
		return nil, err
	}
	used := parseROCmPIDs(said)
	if len(used) == 0 {
		return nil, nil
	}
	all, err := amd{}.list(ctx, ask)
	if err != nil {
		return nil, err
	}
	var out []User
	for _, u := range used {
		for _, d := range all {
			if d.Index == u.UUID {
				out = append(out, User{PID: u.PID, UUID: d.UUID})
			}
		}
	}
	return out, nil
}

// parseROCmList reads the JSON of --showuniqueid, --showproductname, --showbus and --showmeminfo vram: an object with
// "card0", "card1", ... Warnings may stand before it. Versions differ in the case of keys.
func parseROCmList(said []byte) ([]Device, error) {
	start := bytes.IndexByte(said, '{')
	if start < 0 {
		if len(bytes.TrimSpace(said)) == 0 {
			return nil, nil
		}
		return nil, fmt.Errorf("read answer of rocm-smi: no JSON in it: %s", firstLine(string(said)))
	}
	var cards map[string]map[string]any
	if err := json.NewDecoder(bytes.NewReader(said[start:])).Decode(&cards); err != nil {
		return nil, fmt.Errorf("read answer of rocm-smi: %w", err)
	}
	var out []Device
	for key, card := range cards {
		index, ok := strings.CutPrefix(key, "card")
		if n, err := strconv.Atoi(index); !ok || err != nil || n < 0 || strconv.Itoa(n) != index {
			continue // "system"
		}
		said := map[string]string{}
		for k, v := range card {
			said[strings.ToLower(k)] = printable(fmt.Sprint(v), 200)
		}
		d := Device{ID: index, Index: index, Name: cmp.Or(known(said["card series"]), known(said["card model"]), known(said["device name"])), UUID: "amd-" + cmp.Or(known(said["pci bus"]), "card"+index)}
		if id := known(said["unique id"]); id != "" {
			d.UUID = "GPU-" + strings.ToLower(strings.TrimPrefix(strings.ToLower(id), "0x"))
		}
		if n, err := strconv.ParseInt(said["vram total memory (b)"], 10, 64); err == nil && n > 0 {
			d.Memory = n
		}
		out = append(out, d)
	}
	return distinct(out), nil // the partitions of one device have its id
}

// known returns what a tool knows, and nothing for its ways of saying that it does not.
func known(s string) string {
	switch strings.ToLower(s) {
	case "n/a", "none", "unknown", "-", "not supported":
		return ""
	}
	return s
}

var rocmPID = regexp.MustCompile(`^PID (\d{1,9}) is using (\d+) DRM device\(s\)`)

// parseROCmPIDs reads the text of --showpidgpus: "PID 4711 is using 2 DRM device(s):" and below it the indices. The
// users' UUID is the index.
func parseROCmPIDs(said []byte) []User {
	var out []User
	pid := 0
	for line := range strings.Lines(string(said)) {
		line = strings.TrimSpace(line)
		if m := rocmPID.FindStringSubmatch(line); m != nil {
			pid, _ = strconv.Atoi(m[1])
			continue
		}
		if pid == 0 || line == "" {
			continue
		}
		for _, index := range strings.Fields(line) {
			n, err := strconv.Atoi(index)
			if err != nil || n < 0 {
				pid = 0 // the list is over
				break
			}
			out = append(out, User{PID: pid, UUID: strconv.Itoa(n)})
		}
	}
	return out
}
