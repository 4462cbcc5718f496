package engine_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"vigil/internal/event"
	"vigil/internal/job"
	"vigil/internal/restart"
	"vigil/internal/role"
)

// soak lets things go wrong at random: workers fail, moves fail or take long, operators restart and
// stop roles, roles are not ready.
type soak struct {
	*testing.T
	*stage
	chance *rand.Rand
	names  []role.Name
	broken map[role.Name]int // newest life that has failed
	byHand map[role.Name]bool
	did    []string
}

func (k *soak) act() {
	name := k.names[k.chance.IntN(len(k.names))]
	verb := []string{"stop", "start", "write_step", "run", "delete", "read_step"}[k.chance.IntN(6)]
	what := k.chance.IntN(10)
	k.did = append(k.did, fmt.Sprintf("%d %s %s", what, verb, name))
	switch what {
	case 0:
		k.once(verb + " " + string(name))
	case 1:
		k.slow(verb+" "+string(name), time.Duration(k.chance.IntN(15))*time.Second)
	case 2:
		k.on(verb+" "+string(name), nil)
	case 3:
		if err := k.engine.Restart(name); err != nil {
			k.Error(err)
		}
		delete(k.byHand, name)
	case 4:
		ctx, cancel := context.WithTimeout(k.Context(), time.Minute)
		defer cancel()
		k.byHand[name] = true // also when we do not wait for it
		if err := k.engine.StopRole(ctx, name); err != nil {
			k.did = append(k.did, err.Error())
		}
	case 5:
		k.mu.Lock()
		k.deaf[name] = !k.deaf[name]
		k.mu.Unlock()
	default:
		if inc, runs := k.running()[name]; runs && k.engine.Status(name).Incarnation == inc {
			k.broken[name] = inc
			k.engine.Found([]role.Failure{k.failure(name, role.Exited)}, nil)
		}
	}
}

// settled checks that nothing was lost when all is quiet again.
func (k *soak) settled() {
	k.mu.Lock()
	clear(k.hooks)
	clear(k.deaf)
	k.mu.Unlock()
	wait(2 * time.Hour)
	select {
	case out := <-k.outcome:
		k.Fatalf("the job has ended: %+v", out)
	default:
	}
	running := k.running()
	for _, n := range k.names {
		st := k.engine.Status(n)
		switch {
		case k.byHand[n] && (st.State == role.Stopped || st.State == role.Failed):
			if _, runs := running[n]; runs && st.State == role.Stopped {
				k.Errorf("%s is shown as stopped and runs", n)
			}
		case st.State != role.Running || running[n] != st.Incarnation:
			k.Errorf("%s is %s (%s) in incarnation %d; what runs: %v", n, st.State, st.Why, st.Incarnation, running)
		case running[n] <= k.broken[n]:
			k.Errorf("life %d of %s has failed and was never replaced", k.broken[n], n)
		}
	}
	for _, e := range k.of(event.Moved) {
		if strings.Contains(e.Error, "are not stopped") && !k.failedToStop(e.Role) {
			k.Errorf("workers were run beside those of an earlier life: %s", e)
		}
	}
	if k.Failed() {
		k.Log(strings.Join(k.did, "\n"))
	}
}

// failedToStop reports whether a stop of the role's workers ever failed.
func (k *soak) failedToStop(name role.Name) bool {
	for _, e := range k.of(event.Moved) {
		if e.Role == name && e.Verb == string(restart.StopService) && e.Error != "" {
			return true
		}
	}
	return false
}

// shows: R52 A46 A48
func TestWhateverGoesWrongEveryRoleRunsAgainWhenAllIsQuiet(t *testing.T) {
	after := func(names ...role.Name) func(*job.Role) {
		return func(r *job.Role) { r.DependsOn = names }
	}
	roles := []job.Role{roleOf("actor", after("data")), roleOf("data"), roleOf("critic", after("data")), roleOf("reward"),
		roleOf("advantages", after("critic"), func(r *job.Role) { r.Restart.Also = []role.Name{"reward"} })}
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			playWith(t, restart.HealthCheckOn, 100_000, roles, func(t *testing.T, s *stage) {
				k := &soak{T: t, stage: s, chance: rand.New(rand.NewPCG(seed, 1)), broken: map[role.Name]int{}, byHand: map[role.Name]bool{}}
				for i := range roles {
					k.names = append(k.names, roles[i].Name)
				}
				for range 60 {
					k.act()
					synctest.Wait()
					wait(time.Duration(k.chance.IntN(20_000)) * time.Millisecond)
				}
				k.settled()
			})
		})
	}
}
