package service

import (
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// All threads of a worker are looked at once a minute while it speaks, and every ten seconds once it has been silent for as
// long; the main thread alone in between.
//
// shows: FAULT-E3
func TestAllThreadsAreLookedAtSeldom(t *testing.T) {
	for name, c := range map[string]struct {
		speaks time.Duration
		most   int // looks at all threads in ten minutes
	}{
		"a word each 4 s":        {4 * time.Second, 10},
		"a word each 30 s":       {30 * time.Second, 60},
		"silent for ten minutes": {time.Hour, 60},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := &seen{}
				heard, all, main := time.Now(), 0, 0
				for range 600 {
					time.Sleep(time.Second)
					if time.Since(heard) >= c.speaks {
						heard = time.Now()
						k.cpu.Words(1, heard)
					}
					before := k.all
					_, looked := k.look(os.Getpid(), heard)
					if looked {
						main++
					}
					if k.all != before {
						all++
					}
				}
				if all < 10 || all > c.most || main < 400 {
					t.Errorf("%d looks at all threads and %d at the main one, want 10 to %d, and more than 400", all, main, c.most)
				}
			})
		})
	}
}
