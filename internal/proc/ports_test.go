package proc

import (
	"os"
	"path/filepath"
	"testing"
)

// Users have runtime directories of their own, and ports of the machine.
func TestProgramsThatDoNotShareADirectoryNeverLeaseTheSamePort(t *testing.T) {
	seen := map[int]bool{}
	for range 2 {
		ports, err := shortDir(t).Ports()
		if err != nil {
			t.Fatal(err)
		}
		defer ports.Close()
		if err := os.WriteFile(filepath.Join(ports.Folder(), "next"), []byte("4711\n"), 0o600); err != nil { // both begin there
			t.Fatal(err)
		}
		got, err := ports.Lease(2)
		if err != nil {
			t.Fatal(err)
		}
		for _, port := range got {
			if seen[port] {
				t.Errorf("port %d is leased twice", port)
			}
			seen[port] = true
		}
	}
}

func TestProgramsThatDoNotShareADirectoryDoNotBeginWithTheSamePort(t *testing.T) {
	seen := map[int]bool{}
	for range 3 {
		ports, err := shortDir(t).Ports()
		if err != nil {
			t.Fatal(err)
		}
		got, err := ports.Lease(1)
		if err != nil {
			t.Fatal(err)
		}
		seen[got[0]] = true
		if err := ports.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if len(seen) == 1 {
		t.Errorf("all begin with %v", seen)
	}
}
