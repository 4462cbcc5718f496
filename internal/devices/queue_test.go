package devices_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"vigil/internal/devices"
)

// shows: FAULT-G5
func TestAWaiterThatAnswersNobodyIsNamedByItsUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("another user is made by root only")
	}
	all := pretend(t, 1, 1)
	name := "vigil/wait/" + all.Keys()[0] + "/0/stopped/1/first"
	begin(t, stranger, job{Answers: name}).says("has <nil> ")
	until(t, "its queue is full", func() bool {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		return errors.Is(unix.Connect(fd, &unix.SockaddrUnix{Name: "@" + name}), unix.EAGAIN)
	})
	if busy := refused(t, all, "mine-00000002"); len(busy.Ahead) != 1 || busy.Ahead[0].UID != stranger {
		t.Errorf("ahead of us is %+v", busy.Ahead)
	}
}

// shows: FAULT-G5
func TestWaitersHaveDevicesInTheOrderInWhichTheyAsked(t *testing.T) {
	all := pretend(t, 2, 2)
	other := os.Geteuid()
	if other == 0 {
		other = stranger
	}
	first := take(t, all, devices.ClaimOptions{Job: "first-00000001"})
	waiter := func(uid, want int, name, place string) *helper {
		h := begin(t, uid, job{Space: all.Space(), Fake: 2, Want: want, Job: name, Wait: true})
		h.says(place + fmt.Sprintf("; waits for job first-00000001, pid %d (", os.Getpid()))
		return h
	}
	a := waiter(os.Geteuid(), 2, "a-00000002", "place 1 of 1 in the queue for 2 devices")
	b := waiter(other, 1, "b-00000003", "place 2 of 2 in the queue for 1 device")
	c := waiter(os.Geteuid(), 1, "c-00000004", "place 3 of 3 in the queue for 1 device")
	b.sees("place 2 of 3 ")
	a.sees("place 1 of 3 ")
	// One in front dies, and the others move up.
	a.kill()
	b.sees("place 1 of 2 ")
	c.sees("place 2 of 2 ")
	_ = first.Close()
	b.sees("has 0 ")
	c.sees("has 1 ")
}

func TestWhoDoesNotWaitDoesNotPushIn(t *testing.T) {
	all := pretend(t, 2, 2)
	first := take(t, want(t, all, 1), devices.ClaimOptions{Job: "first-00000001"})
	begin(t, os.Geteuid(), job{Space: all.Space(), Fake: 2, Want: 2, Job: "a-00000002", Wait: true}).says("place 1 of 1 ")
	busy := refused(t, want(t, all, 1), "pushes-00000003")
	if len(busy.Ahead) != 1 || busy.Ahead[0].Job != "a-00000002" || !strings.Contains(busy.Error(), "1 free, for which 1 wait already: job a-00000002, pid ") {
		t.Errorf("got %v", busy)
	}
	_ = first.Close()
}

func TestManyAtOnceHaveDevicesOfTheirOwn(t *testing.T) {
	t.Run("in turn", manyAtOnce)
	t.Run("all in the same moment", func(t *testing.T) { // since somebody keeps the turn to himself
		begin(t, os.Geteuid(), job{Stolen: "vigil/turn"}).says("has ")
		manyAtOnce(t)
	})
}

func manyAtOnce(t *testing.T) {
	all := pretend(t, 8, 1)
	var group sync.WaitGroup
	var mu sync.Mutex
	has := map[string]string{}
	for i := range 8 {
		name := fmt.Sprintf("sweep-%08d", i)
		group.Go(func() {
			c, err := devices.Take(t.Context(), all, devices.ClaimOptions{Job: name})
			if err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(func() { _ = c.Close() })
			mu.Lock()
			defer mu.Unlock()
			if id := c.IDs()[0]; has[id] != "" {
				t.Errorf("%s and %s have %s", has[id], name, id)
			}
			has[c.IDs()[0]] = name
		})
	}
	group.Wait()
	if len(has) != 8 {
		t.Errorf("they have %v", has)
	}
}

func TestOfTwoThatWantAllOneHasThem(t *testing.T) {
	for range 20 {
		all := pretend(t, 4, 4)
		results := make(chan error, 2)
		for _, name := range []string{"a-00000001", "b-00000002"} {
			go func() {
				c, err := devices.Take(t.Context(), all, devices.ClaimOptions{Job: name})
				if err == nil {
					t.Cleanup(func() { _ = c.Close() })
				}
				results <- err
			}()
		}
		one, two := <-results, <-results
		if (one == nil) == (two == nil) {
			t.Fatalf("%v and %v", one, two)
		}
	}
}
