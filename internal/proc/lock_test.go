package proc

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func TestDirSweepRemovesSeatsWhoseHolderHasDied(t *testing.T) {
	d := shortDir(t)
	mine, err := d.Seat("mine")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Seat("mine"); !errors.As(err, new(*LockedError)) {
		t.Errorf("taken twice: %v", err)
	}
	dead := filepath.Join(d.Path(), "dead.seat")
	if err := os.WriteFile(dead, []byte("2147483647\n"), 0o600); err != nil { // beyond every pid
		t.Fatal(err)
	}
	if _, err := d.Sweep(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dead); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the seat of a dead program: %v", err)
	}
	if _, err := d.Seat("mine"); !errors.As(err, new(*LockedError)) {
		t.Errorf("taken twice after a sweep: %v", err)
	}
	if who, taken := d.Sitter("mine"); !taken || who.PID != os.Getpid() {
		t.Errorf("it is taken %t, by %+v", taken, who)
	}
	if who, taken := d.Sitter("free"); taken {
		t.Errorf("a free seat is taken by %+v", who)
	}

	// Somebody removes the file, and another takes the seat: it is his now.
	if err := os.Remove(filepath.Join(d.Path(), "mine.seat")); err != nil {
		t.Fatal(err)
	}
	his, err := d.Seat("mine")
	if err != nil {
		t.Fatal(err)
	}
	if mine.Stands() {
		t.Error("a lock stands whose file is another's")
	}
	if err := mine.Unlock(); err != nil {
		t.Error(err)
	}
	if !his.Stands() {
		t.Error("the lock of another was removed")
	}
	if err := his.Unlock(); err != nil {
		t.Error(err)
	}
}

func TestDirLockIsRefusedWithThePidOfTheHolderAndEndsWithIt(t *testing.T) {
	k := newKeeper(t, NoCgroups)
	d := shortDir(t)
	path := filepath.Join(d.Path(), "state.lock")
	other, _ := startHelper(t, k, "lock", path)
	_, err := Lock(path)
	var locked *LockedError
	if !errors.As(err, &locked) || locked.PID != other.PID() || !strings.Contains(err.Error(), "held by pid "+strconv.Itoa(other.PID())) {
		t.Fatalf("%v, want the pid %d", err, other.PID())
	}
	k.Stop(context.Background(), []*Process{other}, StopSpec{})
	l, err := Lock(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(path); !errors.As(err, &locked) || locked.PID != os.Getpid() {
		t.Errorf("%v, want our own pid", err)
	}
	if err := l.Unlock(); err != nil || exists(path) {
		t.Errorf("%v, file there %v", err, exists(path))
	}
	for range 3 {
		l, err := d.Lock("device-4")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.Lock("device-4"); err == nil {
			t.Error("locked twice")
		}
		if err := l.Unlock(); err != nil {
			t.Error(err)
		}
	}
	if _, err := Lock(d.Path() + "/none/x"); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Error(err)
	}
}
