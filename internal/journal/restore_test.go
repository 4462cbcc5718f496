package journal

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Somebody removes, moves, replaces or spoils the file while the journal is open: it is written back whole, said once,
// and what is written later is in it too.
//
// shows: FAULT-J5
func TestAFileThatIsLostOrSpoiledIsWrittenBackWhole(t *testing.T) {
	for how, c := range map[string]struct {
		do   func(t *testing.T, path string) error
		said string
	}{
		"removed":        {func(_ *testing.T, path string) error { return os.Remove(path) }, "removed it"},
		"moved":          {func(_ *testing.T, path string) error { return os.Rename(path, path+".old") }, "moved it"},
		"folder moved":   {func(_ *testing.T, path string) error { return os.Rename(filepath.Dir(path), filepath.Dir(path)+".old") }, "moved it"},
		"cut to nothing": {func(_ *testing.T, path string) error { return os.Truncate(path, 0) }, "cut it short"},
		"cut by half":    {func(_ *testing.T, path string) error { return os.Truncate(path, 40*pageSize) }, "cut it short"},
		"written to":     {func(_ *testing.T, path string) error { return scribble(path) }, "written to it"},
		"replaced":       {replaceByAnother, "another file in its place"},
		"a folder":       {func(_ *testing.T, path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) }, "another file in its place"},
		"a link": {func(_ *testing.T, path string) error {
			return errors.Join(os.Remove(path), os.Symlink("/etc/passwd", path))
		}, "another file in its place"},
		"an earlier copy": {func(t *testing.T, path string) error { copyFile(t, path+".copy", path); return nil }, "somebody has "},
	} {
		t.Run(how, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "state", "journal")
			must(t, os.Mkdir(filepath.Dir(path), 0o700))
			var said bytes.Buffer
			j := mustOpen(t, path, quick(), func(o *Options) {
				o.Remake = func() error { return os.MkdirAll(filepath.Dir(path), 0o700) }
				o.Log = slog.New(slog.NewTextHandler(&said, nil))
			})
			must(t, j.BeginRun(Run{UID: "tiny-1", Epoch: 3}))
			copyFile(t, path, path+".copy")
			for i := range 2000 {
				j.Write(Put(Plan, fmt.Sprint(i), strings.Repeat("m", 200)))
			}
			for i := range KeptIncidents + 50 {
				j.Write(Put(Incident, fmt.Sprint(i), i))
			}
			write(t, j, Put(Role, "actor", 1), Delete(Plan, "7"))
			before := content(t, j)
			must(t, c.do(t, path))
			eventually(t, "it is written back", func() bool { return j.Restored() == 1 })
			write(t, j, Put(Role, "actor", 2))
			if text, is := j.Trouble(); is {
				t.Errorf("trouble: %s", text)
			}
			must(t, j.Close())
			if text := said.String(); strings.Count(text, "level=WARN") != 1 || !strings.Contains(text, c.said) || strings.Contains(text, "level=ERROR") {
				t.Errorf("it said:\n%s", text)
			}
			j = mustOpen(t, path, quick())
			before["role/actor"] = "2"
			if got := content(t, j); !maps.Equal(got, before) {
				t.Errorf("%d records are there, want %d", len(got), len(before))
			}
			if len(before) != 1+1999+KeptIncidents+1 {
				t.Errorf("there were %d records", len(before))
			}
			if r, is, err := j.OpenRun(); !is || r.Epoch != 3 || err != nil {
				t.Errorf("the run is %+v, %t, %v", r, is, err)
			}
		})
	}
}

// scribble writes over the newest pages of a journal, and leaves it as long as it is.
func scribble(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(bytes.Repeat([]byte("x"), 4*pageSize), 0)
	return errors.Join(err, f.Close())
}

func replaceByAnother(t *testing.T, path string) error {
	t.Helper()
	other := filepath.Join(t.TempDir(), "other")
	must(t, mustOpen(t, other, quick(), func(o *Options) { o.Job = "other" }).Close())
	return os.Rename(other, path)
}

// A file that is spoiled in the moment in which it is written to is written back, with what was to be written.
//
// shows: FAULT-J5
func TestAFileThatIsCutBetweenTheLookAndTheWriteIsWrittenBack(t *testing.T) {
	path := newPath(t)
	s := quick()
	cut := make(chan struct{}, 1)
	s.wrap = func(d store) store { return &cutting{d, path, cut} }
	j := mustOpen(t, path, s)
	for i := range 2000 {
		j.Write(Put(Plan, fmt.Sprint(i), strings.Repeat("m", 200)))
	}
	must(t, j.Write().Wait(soon(t)))
	cut <- struct{}{}
	write(t, j, Put(Plan, "17", 1))
	write(t, j, Put(Plan, "18", 1))
	must(t, j.Close())
	got := content(t, mustOpen(t, path, quick()))
	if len(got) != 2000 || got["plan/17"] != "1" || got["plan/18"] != "1" {
		t.Errorf("%d records, 17 is %s, 18 is %s", len(got), got["plan/17"], got["plan/18"])
	}
}

// cutting cuts the file right before a commit.
type cutting struct {
	store
	path string
	cut  chan struct{}
}

func (c *cutting) commit(b *batch) error {
	select {
	case <-c.cut:
		if err := os.Truncate(c.path, 0); err != nil {
			return err
		}
	default:
	}
	return c.store.commit(b)
}

// A file that another process has open is left alone: that is trouble, said once, until it has gone.
//
// shows: FAULT-J5
func TestAFileOfAnotherControllerIsNotReplaced(t *testing.T) {
	path := newPath(t)
	var said bytes.Buffer
	j := mustOpen(t, path, quick(), func(o *Options) { o.Log = slog.New(slog.NewTextHandler(&said, nil)) })
	write(t, j, Put(Role, "actor", 1))
	other, err := os.Create(path + ".second")
	must(t, err)
	must(t, lock(other))
	must(t, os.Rename(path+".second", path))
	eventually(t, "it is trouble", func() bool { text, is := j.Trouble(); return is && strings.Contains(text, "open in another process") })
	if j.Restored() != 0 {
		t.Error("it was written back")
	}
	must(t, other.Close())
	eventually(t, "it is written back", func() bool { return j.Restored() == 1 })
	must(t, j.Close())
	if n := strings.Count(said.String(), "level=WARN"); n != 1 {
		t.Errorf("it said:\n%s", &said)
	}
	if got := content(t, mustOpen(t, path, quick())); got["role/actor"] != "1" {
		t.Errorf("there is %v", got)
	}
}

// What must not be made again is not: the reason is told as trouble.
//
// shows: FAULT-J5
func TestAFileInAFolderThatIsNotOursAnyMoreIsTrouble(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "journal")
	must(t, os.Mkdir(filepath.Dir(path), 0o700))
	j := mustOpen(t, path, quick(), func(o *Options) { o.Remake = func() error { return errors.New("it belongs to user 7") } })
	write(t, j, Put(Role, "actor", 1))
	must(t, os.Rename(filepath.Dir(path), filepath.Dir(path)+".old"))
	c := j.Write(Put(Role, "actor", 2))
	eventually(t, "it is trouble", func() bool { text, is := j.Trouble(); return is && strings.Contains(text, "it belongs to user 7") })
	if err := c.Err(); !errors.Is(err, ErrPending) {
		t.Errorf("the commit gave %v", err)
	}
}
