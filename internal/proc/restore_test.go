package proc

import (
	"errors"
	"os"
	"strings"
	"testing"
)

func TestARuntimeDirectoryThatWasRemovedIsMadeAgainWithTheLeasesHeld(t *testing.T) {
	dir := shortDir(t)
	ports, err := dir.Ports()
	if err != nil {
		t.Fatal(err)
	}
	defer ports.Close()
	got, err := ports.Lease(2)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(dir.Restore(), ports.Restore()); err != nil {
		t.Fatalf("nothing was missing: %v", err)
	}
	if err := os.RemoveAll(dir.Path()); err != nil {
		t.Fatal(err)
	}
	if _, err := ports.Lease(1); err == nil || !Gone(dir.Path()) {
		t.Fatalf("leased in a folder that is gone (%v)", err)
	}
	if err := errors.Join(dir.Restore(), ports.Restore()); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(dir.Path()); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("the directory: %v, %v", st, err)
	}
	theirs, err := dir.Ports()
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	for _, port := range got {
		if held := new(LockedError); !errors.As(theirs.Claim(port), &held) {
			t.Errorf("port %d can be leased twice", port)
		}
	}
	if _, err := ports.Lease(1); err != nil {
		t.Error(err)
	}
}

func TestAPortThatAnotherHasLeasedMeanwhileIsNamed(t *testing.T) {
	dir := shortDir(t)
	ours, err := dir.Ports()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	if err := errors.Join(ours.Claim(20007), os.RemoveAll(dir.Path()), dir.Restore()); err != nil {
		t.Fatal(err)
	}
	theirs, err := dir.Ports()
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	if err := theirs.Claim(20007); err != nil {
		t.Fatal(err)
	}
	if err := ours.Restore(); err == nil || !strings.Contains(err.Error(), "port 20007") {
		t.Errorf("it says %v", err)
	}
}

func TestADirectoryThatCannotBeMadeAgainIsNamed(t *testing.T) {
	dir := shortDir(t)
	path := dir.Path()
	if err := errors.Join(os.RemoveAll(path), os.WriteFile(path, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := dir.Restore(); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "is no folder") {
		t.Errorf("it says %v", err)
	}
}
