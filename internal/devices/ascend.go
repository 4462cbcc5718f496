package devices

import (
	"bytes"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// ascend asks npu-smi. A device is a chip, which programs name by its logic id; a card (NPU) has one or two, and a
// controller (Mcu) that is none.
type ascend struct{}

func (ascend) name() string             { return "npu-smi" }
func (ascend) variable([]string) string { return Ascend }

func (ascend) list(ctx context.Context, ask asker) ([]Device, error) {
	mapped, err := ask(ctx, "info", "-m")
	if err != nil {
		return nil, err
	}
	chips := parseNPUMap(mapped)
	if len(chips) == 0 {
		if len(bytes.TrimSpace(mapped)) > 0 && !bytes.Contains(mapped, []byte("NPU ID")) {
			return nil, fmt.Errorf("read answer of npu-smi info -m: no chip in it: %s", firstLine(string(mapped)))
		}
		return nil, nil
	}
	said, err := ask(ctx, "info")
	if err != nil {
		return nil, err
	}
	rows, _ := parseNPUInfo(said)
	var out []Device
	for _, c := range chips {
		d := Device{ID: c.logic, Index: c.logic, Name: c.name, UUID: "npu-" + c.logic}
		if i := slices.IndexFunc(rows, func(r npuRow) bool { return r.at == c.at }); i >= 0 {
			d.Memory = rows[i].memory
			if rows[i].bus != "" {
				d.UUID = "npu-" + rows[i].bus
			}
			if h := rows[i].health; h != "OK" && h != "Warning" && h != "" {
				d.Ill = h
			}
		}
		out = append(out, d)
	}
	return distinct(out), nil // the chips of some cards share an address
}

func (ascend) inherited(all []Device, environ []string) ([]Device, error) {
	names, given := visibleNames(environ, Ascend)
	return narrow(all, Ascend, names, given)
}

func (a ascend) users(ctx context.Context, ask asker) ([]User, error) {
	said, err := ask(ctx, "info")
	if err != nil {
		return nil, err
	}
	_, used := parseNPUInfo(said)
	if len(used) == 0 {
		return nil, nil
	}
	mapped, err := ask(ctx, "info", "-m")
	if err != nil {
		return nil, err
	}
	all, err := a.list(ctx, func(_ context.Context, args ...string) ([]byte, error) { // what was said a moment ago
		if len(args) > 1 {
			return mapped, nil
		}
		return said, nil
	})
	if err != nil {
		return nil, err
	}
	var out []User
	for _, c := range parseNPUMap(mapped) {
		for _, u := range used {
			i := slices.IndexFunc(all, func(d Device) bool { return d.Index == c.logic })
			if u.at == c.at && i >= 0 {
				out = append(out, User{PID: u.pid, UUID: all[i].UUID})
			}
		}
	}
	return out, nil
}

// npuAt is where a chip lies: its card and its number on it.
type npuAt struct{ npu, chip string }

type npuChip struct {
	at    npuAt
	logic string
	name  string
}

// parseNPUMap reads the text of info -m: a line of titles, then NPU ID, Chip ID, Chip Logic ID, on some machines Chip
// Phy-ID, and Chip Name. A chip without a logic id computes nothing.
func parseNPUMap(said []byte) []npuChip {
	var out []npuChip
	phy := false
	for line := range strings.Lines(string(said)) {
		if strings.Contains(line, "NPU ID") {
			phy = strings.Contains(line, "Phy-ID")
			continue
		}
		f := strings.Fields(line)
		if len(f) < 4 || !isNumber(f[0]) || !isNumber(f[1]) || !isNumber(f[2]) {
			continue
		}
		name := f[3:]
		if phy && len(f) > 4 {
			name = f[4:]
		}
		c := npuChip{npuAt{f[0], f[1]}, f[2], printable(strings.Join(name, " "), 100)}
		if !slices.ContainsFunc(out, func(o npuChip) bool { return o.logic == c.logic }) {
			out = append(out, c)
		}
	}
	return out
}

type npuRow struct {
	at     npuAt
	health string
	bus    string
	memory int64 // bytes
}

type npuUser struct {
	at  npuAt
	pid int
}

var npuBus = regexp.MustCompile(`^[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]$`)

// parseNPUInfo reads the tables of info: of each chip two rows, the card's with its health and the chip's with its
// address and memory; then the processes.
func parseNPUInfo(said []byte) (rows []npuRow, users []npuUser) {
	npu, health, processes := "", "", false
	for line := range strings.Lines(string(said)) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		if strings.Contains(line, "Process id") {
			processes = true
			continue
		}
		first := strings.Fields(cells[0])
		if len(cells) < 3 || len(first) == 0 || !isNumber(first[0]) {
			continue
		}
		second := printable(cells[1], 40)
		switch {
		case processes:
			pid, err := strconv.Atoi(second)
			if err != nil || pid <= 0 {
				continue
			}
			at := npuAt{npu: first[0], chip: "0"}
			if len(first) > 1 {
				at.chip = first[1]
			}
			users = append(users, npuUser{at, pid})
		case npuBus.MatchString(second):
			if npu != "" {
				rows = append(rows, npuRow{npuAt{npu, first[0]}, health, second, npuMemory(cells[2])})
			}
		case len(first) > 1:
			npu, health = first[0], second
		}
	}
	return rows, users
}

var npuUsage = regexp.MustCompile(`(\d{1,9})\s*/\s*(\d{1,9})`)

// npuMemory returns the larger of the memories that a row shows as USED / TOTAL, in MB.
func npuMemory(cell string) int64 {
	most := int64(0)
	for _, m := range npuUsage.FindAllStringSubmatch(cell, -1) {
		n, _ := strconv.ParseInt(m[2], 10, 64)
		most = max(most, n<<20)
	}
	return most
}

func isNumber(s string) bool {
	_, err := strconv.ParseUint(s, 10, 31)
	return err == nil
}
