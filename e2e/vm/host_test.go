package vm

import (
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
)

// cuts is how often the power fails while the journal is written.
const cuts = 3

// One machine goes through all of it, since a start takes long where it is emulated.
// shows: A08 A49 CARD1 CARD2
func TestAMachineOfItsOwn(t *testing.T) {
	onHost(t)
	m := newMachine(t)
	boot := m.boot()
	step := func(name string, do func()) bool {
		return t.Run(name, func(t *testing.T) {
			outer := m.t
			m.t = t
			defer func() { m.t = outer }()
			do()
		})
	}
	step("it is what is wanted", func() { m.ask("TestTheGuest") })
	for _, name := range []string{"nothing", "nobody", "stopped", "interrupt", "takeover_strays", "card"} { // one by one: a script says nothing before its end
		step("script "+name, func() { m.ask("scripts " + name) })
	}
	step("the unit leaves nothing", func() { m.ask("TestTheUnit.*LeavesNothing") })
	step("an ordinary user's unit leaves nothing", func() { m.ask("TestAnOrdinaryUsersUnitLeavesNothing") })
	step("Debian's Prometheus", func() { m.ask("TestDebiansPrometheusScrapesTheCard") })
	for i := range cuts {
		if !step("power cut "+strconv.Itoa(i+1), func() { boot = m.powerCut(boot) }) {
			return
		}
	}
	step("a reboot", func() {
		m.ask("TestBeforeAReboot")
		now := m.reboot()
		if now == boot {
			t.Error("the boot id is the same")
		}
		m.ask("TestAfterAReboot")
	})
}

// powerCut cuts the power while a controller writes its journal as fast as it can. What it has answered to is there
// after the next boot.
func (m *machine) powerCut(boot string) string {
	m.t.Helper()
	m.tell("TestTheJournalIsWritten")
	answered, enough := 0, 20+rand.IntN(200)
	status, said := m.hear(func(line string) bool {
		if n, ok := strings.CutPrefix(line, "answered "); ok {
			answered, _ = strconv.Atoi(n) // printed by us
			enough--
		}
		return enough == 0
	})
	if enough > 0 {
		m.t.Fatalf("the guest's half ended with %d:\n%s", status, said)
	}
	m.cut()
	m.t.Logf("the power was cut after step %d was answered", answered)
	now := m.boot()
	if now == boot {
		m.t.Error("the boot id is the same")
	}
	m.ask("TestAfterAPowerCut " + strconv.Itoa(answered))
	return now
}
