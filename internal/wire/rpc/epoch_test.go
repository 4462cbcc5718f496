package rpc

import (
	"log/slog"
	"strings"
	"testing"
)

// A service obeys no controller that is older than one that it has obeyed, or that has started it.
// shows: A44
func TestAControllerOfAnEarlierEpochIsNotObeyed(t *testing.T) {
	h := startHub(t, "", func(o *HubOptions) { o.Epoch = 2 })
	if err := newLink(t, h.target(), func(o *LinkOptions) { o.Epoch = 3 }).Register(t.Context()); err == nil || !strings.Contains(err.Error(), "epoch 2") {
		t.Errorf("one that epoch 3 has started: %v", err)
	}
	var log lockedText
	l := startLink(t, h.target(), func(o *LinkOptions) {
		o.Epoch = 2
		o.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	h.ears.await(t, 1, "joined")
	h.server.Stop()
	stale := startHub(t, h.path, func(o *HubOptions) { o.Epoch = 1 })
	eventually(t, "a word about the earlier epoch", func() bool { return strings.Contains(log.String(), "epoch 1") })
	if n := stale.ears.count("joined"); n != 0 {
		t.Errorf("it has joined a controller of an earlier epoch: %v", stale.ears.all())
	}
	stale.server.Stop()
	next := startHub(t, h.path, func(o *HubOptions) { o.Epoch = 3 })
	next.ears.await(t, 1, "joined")
	select {
	case err := <-l.ran:
		t.Errorf("the service has ended: %v", err)
	default:
	}
}
