package controller

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"vigil/internal/event"
	"vigil/internal/wire/rpc"
)

// shows: FAULT-D1
func TestDroppedWordsAreCountedAndEachKindIsSaidOnce(t *testing.T) {
	var out bytes.Buffer
	var told []event.Event
	d := newDrops(slog.New(slog.NewTextHandler(&out, nil)), func(e event.Event) { told = append(told, e) })
	id := rpc.ServiceID{Role: "critic", Index: 1}
	for range 3 {
		d.hear(id, "7 words were dropped by the service")
	}
	for n := range 2 * maxSaidDrops {
		d.hear(id, fmt.Sprint("another word ", n))
	}
	if len(told) != 3+2*maxSaidDrops || told[0].Kind != event.Stale || told[0].Role != "critic" || told[0].Detail != "critic/1: 7 words were dropped by the service" {
		t.Errorf("%d events, the first %+v", len(told), told[0])
	}
	if n := strings.Count(out.String(), "\n"); n != maxSaidDrops {
		t.Errorf("%d lines are said:\n%s", n, out.String())
	}
	if n := strings.Count(out.String(), "7 words"); n != 1 {
		t.Errorf("the first is said %d times", n)
	}
}
