package proc

import "testing"

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
