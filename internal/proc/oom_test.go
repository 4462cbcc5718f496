package proc

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// fake makes a machine with these files, by path below its root.
func fake(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for path, text := range files {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// shows: A07
func TestOOMKillIsKnownWhenOurCgroupOfEitherVersionHasCountedOneSinceTheStart(t *testing.T) {
	const control = "oom_kill_disable 0\nunder_oom 0\noom_kill "
	tests := []struct {
		name          string
		machine       map[string]string
		file          string // that counts
		before, after string
	}{
		{
			"version 2",
			map[string]string{
				"proc/self/cgroup":    "0::/user.slice/job\n",
				"proc/self/mountinfo": "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n",
			},
			"sys/fs/cgroup/user.slice/job/memory.events",
			"low 0\nhigh 0\nmax 9\noom 4\noom_kill 3\noom_group_kill 0\n", "low 0\nhigh 0\nmax 9\noom 5\noom_kill 4\noom_group_kill 0\n",
		},
		{
			"version 1, beside a version 2 without the memory controller",
			map[string]string{
				"proc/self/cgroup": "5:cpuset:/\n4:memory:/pod/x\n0::/\n",
				"proc/self/mountinfo": "30 24 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n" +
					"31 24 0:27 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n" +
					"32 24 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
			},
			"sys/fs/cgroup/memory/pod/x/memory.oom_control", control + "0\n", control + "1\n",
		},
		{
			"version 1 in a container, which sees its own cgroup as the root",
			map[string]string{
				"proc/self/cgroup":    "4:cpu,memory:/docker/abc\n",
				"proc/self/mountinfo": "32 24 0:28 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup ro,cpu,memory\n",
			},
			"sys/fs/cgroup/memory/memory.oom_control", control + "7\n", control + "8\n",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.machine[tt.file] = tt.before
			root := fake(t, tt.machine)
			files := oomFiles(root)
			if want := []string{filepath.Join(root, tt.file)}; !slices.Equal(files, want) {
				t.Fatalf("files that count: %q, want %q", files, want)
			}
			c := countOOM(files)
			if c.rose(1 << 23) {
				t.Error("a kill is said that was not counted")
			}
			if err := os.WriteFile(files[0], []byte(tt.after), 0o600); err != nil {
				t.Fatal(err)
			}
			if !c.rose(1 << 23) {
				t.Error("a kill was counted and not said")
			}
		})
	}
}

func TestWithoutAnybodyWhoCountsNoOOMKillIsSaid(t *testing.T) {
	if files := oomFiles(fake(t, map[string]string{"proc/self/cgroup": "nonsense\n", "proc/self/mountinfo": "\n"})); len(files) > 0 {
		t.Errorf("files that count: %q", files)
	}
	if none := countOOM(nil); none.rose(1 << 23) {
		t.Error("a kill is said that nobody counts")
	}
}
