package proc

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// stranger is another user of the machine.
const stranger = 65534

// asRoot skips a test that makes files of another user.
func asRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: only root can make files of another user")
	}
}

// shows: FAULT-G6
func TestAFolderThatIsNotOursAloneIsRefused(t *testing.T) {
	base := t.TempDir()
	at := func(name string) string { return filepath.Join(base, name) }
	must := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	must(os.Mkdir(at("ours"), 0o755), os.Symlink("ours", at("link")), os.Symlink(at("link"), at("links")))
	must(os.Mkdir(at("group"), 0o700), os.Chmod(at("group"), 0o770), os.Mkdir(at("all"), 0o700), os.Chmod(at("all"), 0o777|fs.ModeSticky))
	must(os.Symlink("loop", at("loop")), os.WriteFile(at("file"), nil, 0o600))
	taken := []string{"ours", "link", "links", "links/new", "new/and/below", "ours/../ours", "all/below"}
	refused := map[string]string{"group": "lets others write to it: chmod go-w " + at("group"), "all": "lets others write", "loop": "too many levels", "file": "no folder", "file/x": "not a directory"}
	ours := []string{"loop", "file", "file/x"} // not for their owner or mode
	if os.Geteuid() == 0 {
		must(os.Mkdir(at("theirs"), 0o700), os.Chown(at("theirs"), stranger, stranger))
		must(os.Symlink("ours", at("lure")), os.Lchown(at("lure"), stranger, stranger), os.Symlink("lure", at("to lure")))
		refused["theirs"] = "belongs to user 65534 (nobody), mode drwx------, we are user 0 (root)"
		refused["lure"] = "is a symbolic link that belongs to user 65534"
		refused["lure/new"], refused["to lure"] = refused["lure"], refused["lure"]
		taken = append(taken, "theirs/below")
	}
	for _, name := range taken {
		f, err := MakeFolder(at(name), 0o700)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		f.Close()
	}
	for name, want := range refused {
		_, err := MakeFolder(at(name), 0o700)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
		isOurs := false
		for _, o := range ours {
			isOurs = isOurs || o == name
		}
		if notOurs := new(NotOursError); errors.As(err, &notOurs) == isOurs {
			t.Errorf("%s: it is a %T", name, err)
		}
	}
	if _, err := os.Lstat(at("ours/new")); err != nil {
		t.Error("a link of ours is not followed")
	}
}

// shows: FAULT-G6
func TestARuntimeDirectoryThatAnotherUserHasMadeMeanwhileIsNotUsed(t *testing.T) {
	asRoot(t)
	dir := shortDir(t)
	ports, err := dir.Ports()
	if err != nil {
		t.Fatal(err)
	}
	defer ports.Close()
	squat := errors.Join(os.RemoveAll(dir.Path()), os.MkdirAll(dir.Path()+"/ports", 0o777), os.WriteFile(dir.Path()+"/x.peers", nil, 0o666),
		os.Chown(dir.Path(), stranger, stranger), os.Chown(dir.Path()+"/ports", stranger, stranger))
	if squat != nil {
		t.Fatal(squat)
	}
	_, swept := dir.Sweep()
	_, locked := dir.Lock("a")
	for what, err := range map[string]error{"restored": dir.Restore(), "leased again": ports.Restore(), "swept": swept, "voided": dir.VoidLeases(), "locked": locked} {
		if notOurs := new(NotOursError); what != "locked" && (!errors.As(err, &notOurs) || notOurs.Owner != stranger) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := dir.Restore(); err == nil || !strings.Contains(err.Error(), "--runtime-dir") || !strings.Contains(err.Error(), dir.Path()) {
		t.Errorf("it says %v", err)
	}
	if _, err := os.Lstat(dir.Path() + "/x.peers"); err != nil {
		t.Errorf("a file of another user was removed: %v", err)
	}
	if err := errors.Join(os.RemoveAll(dir.Path()), dir.Restore(), ports.Restore()); err != nil {
		t.Errorf("the way is free: %v", err)
	}
	if _, err := ports.Lease(1); err != nil {
		t.Error(err)
	}
}

// shows: FAULT-G6
func TestWhatIsWrittenAnewGoesIntoNoFileThatSomebodyHasPutThere(t *testing.T) {
	base := t.TempDir()
	path, victim := filepath.Join(base, "note"), filepath.Join(base, "victim")
	if err := errors.Join(os.WriteFile(victim, []byte("kept"), 0o600), os.Symlink(victim, path), os.Symlink(victim, path+".new")); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(ReplaceBy(path, path+".new", []byte("one"), 0o600), Replace(path, []byte("two"), 0o640)); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(victim); string(text) != "kept" {
		t.Errorf("the file behind the link has %q, %v", text, err)
	}
	if text, err := os.ReadFile(path); string(text) != "two" {
		t.Errorf("the note has %q, %v", text, err)
	}
	if st, err := os.Lstat(path); err != nil || st.Mode() != 0o640 {
		t.Errorf("its mode is %v, %v", st.Mode(), err)
	}
	if left, _ := os.ReadDir(base); len(left) != 2 {
		t.Errorf("left: %v", left)
	}
}
