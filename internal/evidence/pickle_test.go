package evidence

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// writer writes pickles as torch's does: a text is kept and asked for when it comes again, a container
// is kept, once it is complete, if it comes again (torch/csrc/jit/serialization/pickler.cpp).
type writer struct {
	out  []byte
	memo map[any]uint32
}

// two is a tuple of two.
type two struct{ a, b any }

func pickleOf(v any) []byte {
	w := writer{out: []byte{opProtocol, pickleNumber}, memo: map[any]uint32{}}
	w.value(v)
	return append(w.out, opStop)
}

func (w *writer) value(v any) {
	switch v := v.(type) {
	case nil:
		w.out = append(w.out, opNone)
	case bool:
		w.out = append(w.out, map[bool]byte{true: opTrue, false: opFalse}[v])
	case int:
		w.integer(int64(v))
	case string:
		if n, ok := w.memo[v]; ok {
			w.get(n)
			return
		}
		w.out = binary.LittleEndian.AppendUint32(append(w.out, opText), uint32(len(v)))
		w.out = append(w.out, v...)
		w.put(v)
	case two:
		w.value(v.a)
		w.value(v.b)
		w.out = append(w.out, opTuple2)
	case []any:
		w.out = append(w.out, opList, opMark)
		for _, one := range v {
			w.value(one)
		}
		w.out = append(w.out, opAppends)
	case *[]any:
		if n, ok := w.memo[v]; ok {
			w.get(n)
			return
		}
		w.value(*v)
		w.put(v)
	case map[string]any:
		w.out = append(w.out, opDict, opMark)
		for key, one := range v {
			w.value(key)
			w.value(one)
		}
		w.out = append(w.out, opSetItems)
	default:
		panic(reflect.TypeOf(v))
	}
}

func (w *writer) integer(n int64) {
	switch {
	case n >= 0 && n < 1<<8:
		w.out = append(w.out, opInt1, byte(n))
	case n >= 0 && n < 1<<16:
		w.out = binary.LittleEndian.AppendUint16(append(w.out, opInt2), uint16(n))
	case n == int64(int32(n)):
		w.out = binary.LittleEndian.AppendUint32(append(w.out, opInt4), uint32(n))
	default:
		w.out = binary.LittleEndian.AppendUint64(append(w.out, opLong, 8), uint64(n))
	}
}

func (w *writer) put(key any) {
	n := uint32(len(w.memo))
	w.memo[key] = n
	if n < 256 {
		w.out = append(w.out, opPut1, byte(n))
	} else {
		w.out = binary.LittleEndian.AppendUint32(append(w.out, opPut4), n)
	}
}

func (w *writer) get(n uint32) {
	if n < 256 {
		w.out = append(w.out, opGet1, byte(n))
	} else {
		w.out = binary.LittleEndian.AppendUint32(append(w.out, opGet4), n)
	}
}

// asGo is a value that was read in the shape of what was written.
func asGo(v pickled) any {
	switch v := v.(type) {
	case int64:
		return int(v)
	case *items:
		out := []any{}
		for _, one := range v.list {
			out = append(out, asGo(one))
		}
		return out
	case *fields:
		out := map[string]any{}
		for _, p := range v.pairs {
			out[p.key] = asGo(p.value)
		}
		return out
	default:
		return v
	}
}

func TestPlainValuesAreReadAsTorchWritesThem(t *testing.T) {
	shared := &[]any{"train.py", 7}
	many := map[string]any{}
	for i := range 300 {
		many[strings.Repeat("k", i+1)] = i * i * i * i
	}
	written := map[string]any{
		"numbers": []any{0, 255, 256, 65535, 65536, -1, -70000, 1 << 40, -(1 << 40), 1<<63 - 1},
		"others":  []any{nil, true, false, "", "grüße"}, "pair": two{"0", "default_pg"},
		"frames": []any{shared, shared}, "empty": map[string]any{}, "none": []any{}, "many": many, "again": "numbers",
	}
	got, err := unpickle(t.Context(), pickleOf(written))
	if err != nil {
		t.Fatal(err)
	}
	want := written
	want["pair"] = []any{"0", "default_pg"}
	want["frames"] = []any{*shared, *shared}
	if !reflect.DeepEqual(asGo(got), any(want)) {
		t.Errorf("%v, want %v", asGo(got), want)
	}
}

func TestWhatCouldRunCodeIsRefusedAndNothingOfItHappens(t *testing.T) {
	src, err := os.ReadFile(filepath.Join("testdata", "flight", "code"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unpickle(t.Context(), src); err == nil || !strings.Contains(err.Error(), "opcode 0x63 is refused") {
		t.Errorf("GLOBAL: %v", err)
	}
	if _, err := os.Stat("/tmp/a-dump-was-run"); err == nil {
		t.Error("it was run")
	}
	for op, name := range map[byte]string{'c': "GLOBAL", 'R': "REDUCE", 'i': "INST", 'o': "OBJ", 'b': "BUILD", 0x81: "NEWOBJ", 0x92: "NEWOBJ_EX", 0x93: "STACK_GLOBAL", 'P': "PERSID", 'Q': "BINPERSID", 0x82: "EXT1", 0x83: "EXT2", 0x84: "EXT4", 0x97: "NEXT_BUFFER"} {
		if _, err := unpickle(t.Context(), []byte{opProtocol, 2, ')', ')', op, 'o', 's', '\n', 'x', '\n', opStop}); err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestABrokenPickleIsAnErrorAndItsBoundsHold(t *testing.T) {
	long := append([]byte{opProtocol, 2}, []byte(strings.Repeat("N", maxPickleOps+10))...)
	for name, src := range map[string]string{
		"it ends in the middle":                     "\x80\x02]",
		"it is not of protocol 2":                   "\x80\x04N.",
		"it stops in the middle":                    "\x80\x02NN.",
		"a container ends that has not begun":       "\x80\x02NNt.",
		"a container has too few values":            "\x80\x02](a.",
		"values belong to no container":             "\x80\x02(e.",
		"values belong to another kind":             "\x80\x02](NNu.",
		"value 7 is asked for and was not kept":     "\x80\x02h\x07.",
		"nothing is there to be kept":               "\x80\x02q\x00.",
		"a number of 9 bytes, 8 are the most":       "\x80\x02\x8a\x09123456789.",
		"more than 64 containers are open":          "\x80\x02" + strings.Repeat("(", 65),
		"it has more than 3145728 opcodes":          string(long),
		"byte 2: it ends in the middle":             "\x80\x02X\xff\xff\xff\xff",
		"byte 4: values belong to another kind of ": "\x80\x02}Na.",
	} {
		if _, err := unpickle(t.Context(), []byte(src)); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%.30q: %v, want %q", src, err, name)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	late := errors.New("the time is up")
	cancel(late)
	if _, err := unpickle(ctx, pickleOf("x")); !errors.Is(err, late) {
		t.Errorf("after the end of its time: %v", err)
	}
}

func FuzzADumpIsReadOrRefusedAndNeverWorse(f *testing.F) {
	for _, name := range []string{"rank_0", "rank_1", "code"} {
		src, err := os.ReadFile(filepath.Join("testdata", "flight", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(src)
	}
	f.Add(pickleOf(map[string]any{"version": "2.4", "entries": []any{map[string]any{"collective_seq_id": 1 << 62, "process_group": two{nil, 7}}}}))
	f.Add([]byte("\x80\x02]q\x00h\x00a.")) // a list that holds itself
	f.Fuzz(func(t *testing.T, src []byte) {
		d, err := parseDump(t.Context(), src)
		if (d == nil) == (err == nil) {
			t.Fatalf("%v, %v", d, err)
		}
		if d != nil {
			w := world{ranks: []int{0, 1}, dumps: map[int]*dump{0: d}}
			_, _ = w.say(t.Context())
		}
	})
}
