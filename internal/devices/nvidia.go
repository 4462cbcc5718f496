package devices

import (
	"context"
	"encoding/csv"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// nvidia asks nvidia-smi.
type nvidia struct{}

func (nvidia) name() string             { return "nvidia-smi" }
func (nvidia) variable([]string) string { return CUDA }

func (nvidia) list(ctx context.Context, ask asker) ([]Device, error) {
	said, err := ask(ctx, "--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader")
	if err != nil {
		if strings.Contains(string(said), "No devices were found") {
			return nil, nil
		}
		return nil, err
	}
	return parseNvidiaList(said)
}

func (nvidia) inherited(all []Device, environ []string) ([]Device, error) {
	names, given := visibleNames(environ, CUDA)
	return narrow(all, CUDA, names, given)
}

func (nvidia) users(ctx context.Context, ask asker) ([]User, error) {
	said, err := ask(ctx, "--query-compute-apps=pid,gpu_uuid", "--format=csv,noheader")
	if err != nil {
		if strings.Contains(string(said), "No devices were found") {
			return nil, nil
		}
		return nil, err
	}
	return parseNvidiaUsers(said)
}

// parseNvidiaList reads rows of index, UUID, name and memory. A row that has not all four is left out.
func parseNvidiaList(said []byte) ([]Device, error) {
	rows, err := rowsOf(said, 4)
	var out []Device
	for _, r := range rows {
		if r[0] == "" || r[1] == "" {
			continue
		}
		out = append(out, Device{ID: r[0], Index: r[0], UUID: r[1], Name: r[2], Memory: mebibytes(r[3])})
	}
	if err == nil && len(out) == 0 && len(strings.TrimSpace(string(said))) > 0 {
		err = fmt.Errorf("read answer of nvidia-smi: no device in it: %s", firstLine(string(said)))
	}
	return out, err
}

// parseNvidiaUsers reads rows of pid and UUID.
func parseNvidiaUsers(said []byte) ([]User, error) {
	rows, err := rowsOf(said, 2)
	var out []User
	for _, r := range rows {
		if pid, err := strconv.Atoi(r[0]); err == nil && pid > 0 {
			out = append(out, User{PID: pid, UUID: r[1]})
		}
	}
	return out, err
}

// rowsOf reads CSV and drops what has another number of fields.
func rowsOf(said []byte, fields int) ([][]string, error) {
	r := csv.NewReader(strings.NewReader(string(said)))
	r.TrimLeadingSpace, r.FieldsPerRecord, r.LazyQuotes = true, -1, true
	rows, err := r.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("read answer of nvidia-smi: %w", err)
	}
	rows = slices.DeleteFunc(rows, func(row []string) bool { return len(row) != fields })
	for _, row := range rows {
		for i := range row {
			row[i] = printable(row[i], 200)
		}
	}
	return rows, nil
}

// mebibytes reads "81559 MiB"; what cannot be read is 0, since memory is shown and never reckoned with.
func mebibytes(s string) int64 {
	number, _, _ := strings.Cut(s, " ")
	n, err := strconv.ParseInt(number, 10, 40)
	if err != nil || n < 0 {
		return 0
	}
	return n << 20
}
