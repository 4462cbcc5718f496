package journal

import (
	"log/slog"
	"strings"
	"testing"
)

// shows: FAULT-J1
func TestARefusedRecordIsNeverSilent(t *testing.T) {
	var log strings.Builder
	j := mustOpen(t, newPath(t), quick(), func(o *Options) { o.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	defer j.Close()
	large := strings.Repeat("x", LargestValue)
	for range 3 {
		if err := j.Write(Put(Role, "actor", 1), Put(Lease, "actor", large)).Err(); err == nil {
			t.Fatal("a record over the limit is taken")
		}
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 1 || !strings.Contains(log.String(), `put lease \"actor\"`) {
		t.Errorf("%d warnings: %s", n, log.String())
	}
	records, writes := j.Refused()
	if writes != 3 || len(records) != 2 || !strings.Contains(records[0], "lease actor") || !strings.Contains(records[1], "role actor") {
		t.Errorf("%d writes were refused, of %q", writes, records)
	}
	write(t, j, Put(Lease, "actor", "small"), Put(Role, "actor", 1))
	if records, writes := j.Refused(); len(records) != 0 || writes != 3 {
		t.Errorf("after a record that was taken: %q, %d", records, writes)
	}
}
