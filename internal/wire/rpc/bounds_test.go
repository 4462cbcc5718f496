package rpc

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"vigil/api"
)

// shows: FAULT-A5
func TestClientsWithoutASenderAreTakenUpToABoundAndTheRestIsCounted(t *testing.T) {
	var mu sync.Mutex
	var refused []string
	h := startHub(t, "", func(o *HubOptions) {
		o.PollEvery = time.Hour
		o.Refused = func(why string) {
			mu.Lock()
			defer mu.Unlock()
			refused = append(refused, why)
		}
	})
	client := beatsOf(t, h.target())
	dir := folder(t)
	for i := range maxSeeds + 3 { // they listen and do not answer
		l, err := net.Listen("unix", fmt.Sprintf("%s/%d.sock", dir, i))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
	}
	register := func(i int) error {
		_, err := client.RegisterWorkerProcess(t.Context(), &api.RegisterWorkerProcessRequest{WorkerAddress: fmt.Sprintf("unix://%s/%d.sock", dir, i)})
		return err
	}
	for i := range maxSeeds {
		if err := register(i); err != nil {
			t.Fatalf("client %d: %v", i, err)
		}
	}
	for i := range 3 {
		if err := register(maxSeeds + i); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "128 clients without a sender") {
			t.Errorf("one client too many: %v", err)
		}
	}
	if err := register(0); err != nil {
		t.Errorf("a client that registers again: %v", err)
	}
	mu.Lock()
	if len(refused) != 3 || !strings.Contains(refused[0], "128 clients without a sender are registered") {
		t.Errorf("refused: %q", refused)
	}
	mu.Unlock()
	if n := len(h.Registrations()); n != maxSeeds {
		t.Errorf("%d are registered, want %d", n, maxSeeds)
	}
	// A service of the job has its token and is none of them; who leaves makes room.
	startLink(t, h.target(), nil)
	h.ears.await(t, 1, "joined critic/0")
	if _, err := client.UnregisterWorkerProcess(t.Context(), &api.RegisterWorkerProcessRequest{WorkerAddress: fmt.Sprintf("unix://%s/%d.sock", dir, 7)}); err != nil {
		t.Fatal(err)
	}
	if err := register(maxSeeds); err != nil {
		t.Errorf("after one has left: %v", err)
	}
}

// shows: FAULT-A5
func TestWhatACallCarriesBesideItsMessageIsBounded(t *testing.T) {
	h := startHub(t, "", nil)
	client := beatsOf(t, h.target())
	for size, taken := range map[int]bool{16 << 10: true, 128 << 10: false, 15 << 20: false} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		_, err := client.IsBeat(metadata.AppendToOutgoingContext(ctx, "x-much", strings.Repeat("x", size)), &api.HeartBeatRequest{})
		cancel()
		if (err == nil) != taken {
			t.Errorf("%d bytes of metadata: %v", size, err)
		}
	}
	if _, err := client.IsBeat(t.Context(), &api.HeartBeatRequest{}); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// shows: FAULT-A5
func TestAMessageIsBounded(t *testing.T) {
	h := startHub(t, "", nil)
	conn := plainConn(t, h.target())
	_, err := api.NewHeartBeatClient(conn).RegisterWorkerProcess(t.Context(),
		&api.RegisterWorkerProcessRequest{WorkerAddress: "unix://" + filepath.Join("/", strings.Repeat("x", maxMessage))})
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a message of more than %d bytes: %v", maxMessage, err)
	}
	if n := len(h.Registrations()); n != 0 {
		t.Errorf("%d are registered", n)
	}
}
