package takeover

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
)

// sample is how many of the writes are taken where not all are.
const sample = 20

// undone is a death right after a write that is not there when the next controller looks, as if the
// machine had kept it from the disk.
const undone = "undone"

// death is where the first controller dies: at a write of its journal.
type death struct {
	write    int
	side     string // before, after, undone
	ordinary bool   // as an ordinary user, without cgroups
}

func (d death) String() string {
	user := "root"
	if d.ordinary {
		user = "nobody"
	}
	return fmt.Sprintf("%d-%s-%s", d.write, d.side, user)
}

// tell plays the story to its end, with these arguments of the first controller.
func (j *job) tell(args ...string) {
	j.t.Helper()
	j.start(args...)
	j.play()
	j.finish()
}

// seed chooses what is chosen; the same seed chooses the same. The usual sample is always the same one; who asks
// for more gets others.
func seed(t *testing.T) *rand.Rand {
	t.Helper()
	n := uint64(1)
	if os.Getenv("VIGIL_TAKEOVER")+os.Getenv("VIGIL_TAKEOVER_RANDOM") != "" {
		n = uint64(time.Now().UnixNano())
	}
	if text := os.Getenv("VIGIL_TAKEOVER_SEED"); text != "" {
		var err error
		if n, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("VIGIL_TAKEOVER_SEED=%d", n)
	return rand.New(rand.NewPCG(n, 0))
}

// count plays the story without a death and returns how many writes of the journal it takes.
func count(t *testing.T) int {
	t.Helper()
	j := prepare(t, false, smallJob)
	j.tell()
	return newestWrite(t, j.journal())
}

// newestWrite is the number of a journal's newest write: bbolt numbers its transactions.
func newestWrite(t *testing.T, path string) int {
	t.Helper()
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	tx, err := db.Begin(false)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	return tx.ID()
}

// The controller dies right before or right after a write of its journal, and others go on.
// shows: A44 A49
func TestAControllerMayDieAtAnyWriteOfItsJournal(t *testing.T) {
	chance, n := seed(t), count(t)
	var all []death
	for write := 1; write <= n; write++ {
		for _, side := range []string{"before", "after", undone} {
			all = append(all, death{write, side, false}, death{write, side, true})
		}
	}
	if os.Geteuid() != 0 {
		all = slices.DeleteFunc(all, func(d death) bool { return d.ordinary }) // we are ordinary ourselves
	}
	if os.Getenv("VIGIL_TAKEOVER") != "all" {
		chance.Shuffle(len(all), func(a, b int) { all[a], all[b] = all[b], all[a] })
		all = all[:min(sample, len(all))]
	}
	var died atomic.Int64
	t.Run("each", func(t *testing.T) {
		for _, d := range all {
			t.Run(d.String(), func(t *testing.T) {
				t.Parallel()
				j := prepare(t, d.ordinary, smallJob)
				side := d.side
				if side == undone {
					side, j.undo = "after", true
				}
				j.tell("--die-at-write", fmt.Sprintf("%d:%s", d.write, side))
				died.Add(int64(j.deaths))
			})
		}
	})
	t.Logf("%d writes; %d stories, in %d of them the controller died", n, len(all), died.Load())
	if died.Load() < int64(len(all)/2) { // the last numbers are not reached by a story whose writes meet in one commit
		t.Errorf("the controller died in %d of %d stories", died.Load(), len(all))
	}
}

// The controller is killed at any time, and the one after it, until so many are.
// shows: A44 A49
func TestControllersMayDieAtAnyInstant(t *testing.T) {
	left, err := strconv.ParseInt(cmp.Or(os.Getenv("VIGIL_TAKEOVER_RANDOM"), "20"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	chance := seed(t)
	const each = 6
	var died atomic.Int64
	for round := 0; round < 3 && died.Load() < left && !t.Failed(); round++ { // a story may be over before the next death
		t.Run(fmt.Sprintf("round %d", round), func(t *testing.T) {
			for i := range (left - died.Load() + each - 1) / each {
				own := rand.New(rand.NewPCG(chance.Uint64(), 0))
				t.Run(strconv.FormatInt(i, 10), func(t *testing.T) {
					t.Parallel()
					controllers := 0
					j := prepare(t, i%2 == 1 && os.Geteuid() == 0, smallJob)
					j.dies = func() (time.Duration, bool) {
						controllers++
						return time.Duration(own.IntN(700)) * time.Millisecond, controllers <= each
					}
					j.tell()
					died.Add(int64(j.deaths))
				})
			}
		})
	}
	t.Logf("%d controllers were killed", died.Load())
	if died.Load() < left {
		t.Errorf("only %d controllers were killed, want %d", died.Load(), left)
	}
}
