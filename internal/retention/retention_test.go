package retention

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var began = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

// days makes runs, one a day, the newest first, of 100 bytes each.
func days(n int, change func(i int, r *Run)) []Run {
	var out []Run
	for i := range n {
		r := Run{UID: fmt.Sprintf("tiny-%08x", i), Path: fmt.Sprintf("/s/tiny-%08x", i), Last: began.AddDate(0, 0, -i), Bytes: 100}
		change(i, &r)
		out = append(out, r)
	}
	return out
}

func paths(all []Removal) []string {
	var out []string
	for _, r := range all {
		out = append(out, filepath.Base(r.Path))
	}
	slices.Sort(out)
	return out
}

// shows: FAULT-I11
func TestWhichRunsGo(t *testing.T) {
	p := Policy{Runs: 2, Incidents: 3*24*time.Hour + time.Hour, Bytes: 1000}
	for name, c := range map[string]struct {
		change func(i int, r *Run)
		bytes  int64
		want   []string
	}{
		"all but the newest":                       {func(int, *Run) {}, 1000, []string{"tiny-00000002", "tiny-00000003", "tiny-00000004", "tiny-00000005"}},
		"those with incidents stay for three days": {func(_ int, r *Run) { r.Incidents = 1 }, 1000, []string{"tiny-00000004", "tiny-00000005"}},
		"one that is held stays":                   {func(i int, r *Run) { r.Held = i == 5 }, 1000, []string{"tiny-00000002", "tiny-00000003", "tiny-00000004"}},
		"what is too much goes, oldest first":      {func(_ int, r *Run) { r.Incidents = 1 }, 250, []string{"tiny-00000002", "tiny-00000003", "tiny-00000004", "tiny-00000005"}},
		"what is held is never too much":           {func(_ int, r *Run) { r.Held = true }, 250, nil},
	} {
		p.Bytes = c.bytes
		if got := paths(p.Thin(days(6, c.change), began)); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v go, want %v", name, got, c.want)
		}
	}
	if got := (Policy{}).Thin(days(100, func(int, *Run) {}), began); got != nil {
		t.Errorf("without bounds %v go", got)
	}
}

// tree makes empty files, with their folders, below a folder of the test.
func tree(t *testing.T, files ...string) string {
	t.Helper()
	root := t.TempDir()
	for _, f := range files {
		path := filepath.Join(root, f)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// shows: FAULT-I11
func TestOnlyWhatIsARunOfOursIsOne(t *testing.T) {
	home := tree(t, "tiny-00000001/logs/a", "tiny-00000002/logs/a", "tiny-00000003/mine", "other/logs/a", "journal.db", "elsewhere/logs/a")
	if err := os.Symlink("elsewhere", filepath.Join(home, "tiny-00000004")); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Mkdir(filepath.Join(home, "tiny-00000005"), 0o755); err != nil {
			t.Fatal(err)
		}
		_ = os.Mkdir(filepath.Join(home, "tiny-00000005", "logs"), 0o755)
		_ = os.Lchown(filepath.Join(home, "tiny-00000005"), 65534, 65534)
	}
	runs, err := Runs(home, func(name string) bool { return strings.HasPrefix(name, "tiny-") }, func(uid string) bool { return uid == "tiny-00000002" })
	if err != nil || len(runs) != 2 || runs[0].UID != "tiny-00000001" || runs[0].Held || !runs[1].Held || runs[0].Bytes == 0 {
		t.Errorf("there are %+v, %v", runs, err)
	}
	gone, err := Remove(context.Background(), Policy{Runs: 1}.Thin(append(runs, Run{UID: "tiny-0000000f", Path: filepath.Join(home, "tiny-0000000f"), Last: time.Now().Add(time.Hour)}), time.Now()), began)
	if err != nil || len(gone) != 1 {
		t.Fatalf("gone: %v, %v", gone, err)
	}
	if _, err := os.Stat(filepath.Join(home, "tiny-00000001")); err == nil {
		t.Error("the run is still there")
	}
	if said, err := os.ReadFile(filepath.Join(home, NoteFile)); err != nil || !strings.Contains(string(said), "removed run tiny-00000001") || !strings.Contains(string(said), "--keep-runs 1") {
		t.Errorf("it is said: %q, %v", said, err)
	}
}

// shows: FAULT-I11
func TestWhichLivesGo(t *testing.T) {
	var files []string
	for inc := 1; inc <= 20; inc++ {
		files = append(files, fmt.Sprintf("%d/0.1/stdout.log", inc))
	}
	for attempt := 2; attempt <= 12; attempt++ {
		files = append(files, fmt.Sprintf("20/0.%d/stdout.log", attempt))
	}
	dir := tree(t, append(files, "service.0.log", "20/1.1/stdout.log")...)
	got := paths(Policy{Lives: 5}.ThinLives(dir, 20))
	want := []string{"0.4", "0.5", "0.6", "0.7", "10", "11", "12", "13", "14", "15", "4", "5", "6", "7", "8", "9"}
	if !slices.Equal(got, want) {
		t.Errorf("%v go, want %v", got, want)
	}
	if got := (Policy{Lives: 1}).ThinLives(dir, 3); slices.ContainsFunc(got, func(r Removal) bool { return len(filepath.Base(r.Path)) > 0 && filepath.Base(r.Path) >= "3" }) {
		t.Errorf("lives from the current on go: %v", paths(got))
	}
}

func TestALargeRunLosesItsOldestLives(t *testing.T) {
	run := tree(t, "logs/a/1/0.1/stdout.log", "logs/a/2/0.1/stdout.log", "logs/a/3/0.1/stdout.log", "logs/a/4/0.1/stdout.log")
	all := Policy{Bytes: 1}.ThinLarge(run, filepath.Join(run, "logs"), map[string]int{"a": 4})
	if got := paths(all); !slices.Equal(got, []string{"1", "2"}) {
		t.Errorf("%v go", got)
	}
}

func TestTheNewestIncidentsStay(t *testing.T) {
	dir := tree(t, "1.json", "1/critic/evidence.json", "2.json", "3.json", "3/critic/x", "4.json", "10.json", "10/a/x")
	if got := paths(Policy{Kept: 2}.ThinIncidents(dir, 100)); !slices.Equal(got, []string{"1", "1.json", "2.json", "3.json"}) {
		t.Errorf("%v go", got)
	}
}

func TestTheNoteStaysSmall(t *testing.T) {
	dir := t.TempDir()
	for i := range 3000 {
		if err := note(filepath.Join(dir, NoteFile), fmt.Sprintf("line %d %s\n", i, strings.Repeat("x", 60))); err != nil {
			t.Fatal(err)
		}
	}
	text, _ := os.ReadFile(filepath.Join(dir, NoteFile))
	if len(text) > noteSize || !strings.Contains(string(text), "line 2999 ") || !strings.HasPrefix(string(text), "line ") {
		t.Errorf("%d bytes, from %.20q", len(text), text)
	}
}
