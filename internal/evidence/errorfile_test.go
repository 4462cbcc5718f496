package evidence

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// shows: A83
func TestAnErrorFileIsReadInBothShapesAndABrokenOneIsSaid(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, text string
		message    string
		at         int64  // 0: when it was written
		wrong      string // in the error
	}{
		{"a text", `{"message": "ValueError: no data", "timestamp": 1700000000}`, "ValueError: no data", 1700000000, ""},
		{"an object", `{"message": {"message": "RuntimeError: NaN in loss", "extraInfo": {"py_callstack": "Traceback", "timestamp": "1700000001"}}}`, "RuntimeError: NaN in loss", 1700000001, ""},
		{"a time that is none", `{"message": {"message": "x", "extraInfo": {"timestamp": "soon"}}}`, "x", 0, ""},
		{"what is no UTF-8", "{\"message\": \"caf\xe9\"}", "caf\uFFFD", 0, ""},
		{"junk", "\x00\x01\x02", "", 0, "it is no JSON"},
		{"cut half way", `{"message": "Val`, "", 0, "it is no JSON"},
		{"empty", "", "", 0, "it is no JSON"},
		{"another document", `{"message": [1, 2]}`, "", 0, "neither a text nor an object"},
		{"without a message", `{"error": "x"}`, "", 0, "neither a text nor an object"},
		{"with an empty message", `{"message": {"extraInfo": {}}}`, "", 0, "it has no message"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "error.json")
			if err := os.WriteFile(path, []byte(tt.text), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := ReadErrorFile(path)
			if tt.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wrong) || !strings.Contains(err.Error(), path) {
					t.Errorf("error %v, want the path and %q", err, tt.wrong)
				}
				return
			}
			if err != nil || got.Message != tt.message || tt.at != 0 && got.At.Unix() != tt.at || tt.at == 0 && !got.At.Equal(got.Written) {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}

// shows: A83
func TestAnErrorFileThatIsNoneCostsNeitherTimeNorMemory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(unix.Mkfifo(at("fifo"), 0o600), os.Mkdir(at("folder"), 0o700), os.Symlink("/dev/zero", at("device")), os.WriteFile(at("large"), []byte("{"), 0o600), os.Truncate(at("large"), 1<<30)); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"fifo": "FIFO", "folder": "directory", "device": "device", "large": "it has 1073741824 bytes"} {
		if _, err := ReadErrorFile(at(name)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", name, err, want)
		}
	}
	if _, err := ReadErrorFile(at("none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: error %v", err)
	}
}

// shows: A83
func TestTheEarlierErrorFileIsThatOfTheEarlierSecondElseTheOneWrittenFirst(t *testing.T) {
	t.Parallel()
	second := time.Unix(1700000000, 0)
	early := ErrorFile{At: second, Written: second.Add(900 * time.Millisecond)}
	late := ErrorFile{At: second.Add(time.Second), Written: second}
	tie := ErrorFile{At: second, Written: second.Add(100 * time.Millisecond)}
	if !early.Before(late) || late.Before(early) {
		t.Error("the file's own time does not decide")
	}
	if !tie.Before(early) || early.Before(tie) {
		t.Error("within a second the time of writing does not decide")
	}
}
