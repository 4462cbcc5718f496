package evidence

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// A worker's error file is read or refused, and what is kept of it can be shown.
func FuzzErrorFile(f *testing.F) {
	for _, text := range []string{
		`{"message": "ValueError: no data", "timestamp": 1700000000}`,
		`{"message": {"message": "RuntimeError", "extraInfo": {"py_callstack": "Traceback", "timestamp": "1700000001"}}}`,
		`{"message": {"message": "x", "extraInfo": {"timestamp": 1e10}}, "timestamp": -1}`,
		`{"message": "\ud800"}`, `{"MESSAGE": "a", "message": null}`, `[]`, `{"message": {"message": 1}}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var e ErrorFile
		if err := e.parse(text); err != nil {
			if err.Error() == "" || !utf8.ValidString(strings.ToValidUTF8(err.Error(), "")) {
				t.Fatalf("refused with %q", err)
			}
			return
		}
		if e.Message == "" || !utf8.ValidString(e.Message) || len(e.Message) > maxMessage+len(" ...") {
			t.Fatalf("a message of %d bytes: %.200q", len(e.Message), e.Message)
		}
		if year := e.At.Year(); !e.At.IsZero() && (year < 1969 || year > 5200) {
			t.Fatalf("raised at %s", e.At)
		}
	})
}

// Lines of the kernel's log, in which any program may write that is root in its container.
func FuzzKernelLog(f *testing.F) {
	f.Add("4,1234,5678901,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python, GPU has fallen off the bus.")
	f.Add("4,1,2,-;NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 13, pid='<unknown>', name=<unknown>, Graphics Exception\n3,2,3;x")
	f.Add("6,1,99999999999999999999,-;NVRM: Xid (0000:01:00): 99999999999999999999, pid=1")
	f.Fuzz(func(t *testing.T, lines string) {
		for _, x := range xidsIn(lines) {
			if x.Number < 0 || x.PID < 0 || !strings.Contains(x.Line, "Xid") || strings.ContainsAny(x.Name, ",'") {
				t.Fatalf("%+v", x)
			}
			_, _, _ = x.Hardware(), x.Ill(), x.Contained()
		}
	})
}
