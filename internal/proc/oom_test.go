package proc

import (
	"os"
	"path/filepath"
	"testing"
)

func TestOOMKillIsKnownWhenTheCgroupHasCountedOneSinceTheStart(t *testing.T) {
	folder := t.TempDir()
	say := func(text string) {
		if err := os.WriteFile(filepath.Join(folder, "memory.events"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	say("low 0\nhigh 0\nmax 9\noom 4\noom_kill 3\noom_group_kill 0\n")
	c := countOOM(folder)
	if c.group != 3 {
		t.Errorf("counted %d, want 3", c.group)
	}
	if c.rose(1 << 23) {
		t.Error("a kill is said that was not counted")
	}
	say("oom 5\noom_kill 4\n")
	if !c.rose(1 << 23) {
		t.Error("a kill was counted and not said")
	}
	if none := countOOM(""); none.rose(1 << 23) {
		t.Error("a kill is said that nobody counts")
	}
}
