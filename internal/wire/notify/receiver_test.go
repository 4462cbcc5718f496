package notify

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestASocketWhoseFileWasRemovedIsBoundAgainAndWhoHadConnectedIsHeardAsBefore(t *testing.T) {
	path := filepath.Join(shortDir(t), "n")
	var h heard
	r, err := Listen(path, h.take, nil)
	if err != nil {
		t.Fatal(err)
	}
	before, err := net.Dial("unixgram", path)
	if err != nil {
		t.Fatal(err)
	}
	defer before.Close()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := Send(path, "READY=1"); err == nil {
		t.Fatal("somebody listens at a path that is gone")
	}
	for range 2 { // the second time there is nothing to do
		if err := r.Restore(); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v; want mode 0600", info, err)
	}
	if err := Send(path, "X_VIGIL_STEP=1"); err != nil {
		t.Fatal(err)
	}
	r.Drain()
	if _, err := before.Write([]byte("X_VIGIL_STEP=2")); err != nil {
		t.Fatal(err)
	}
	r.Drain()
	r.Close()
	if diff := cmp.Diff([]Word{{Kind: Step, Number: 1}, {Kind: Step, Number: 2}}, h.words); diff != "" {
		t.Errorf("words (-want +got):\n%s", diff)
	}
	if err := r.Restore(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("a receiver that is closed was bound again")
	}
}
