package evidence

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
)

// Bounds of a pickle that is read.
const (
	maxPickleOps   = 3 << 20 // opcodes; a dump of 2,000 entries has about 200,000
	maxPickleMarks = 64      // containers that are open at a time
	pickleLook     = 1 << 12 // opcodes between two looks whether time is up
)

// The opcodes of pickle protocol 2 that torch's writer uses for plain values (Python's Lib/pickle.py;
// torch/csrc/jit/serialization/pickler.cpp). Everything else is refused, first of all what names or
// calls code.
const (
	opMark       = '('
	opStop       = '.'
	opNone       = 'N'
	opInt4       = 'J'
	opInt1       = 'K'
	opInt2       = 'M'
	opFloat      = 'G'
	opText       = 'X'
	opList       = ']'
	opAppend     = 'a'
	opAppends    = 'e'
	opDict       = '}'
	opSetItem    = 's'
	opSetItems   = 'u'
	opTuple      = 't'
	opTuple0     = ')'
	opPut1       = 'q'
	opPut4       = 'r'
	opGet1       = 'h'
	opGet4       = 'j'
	opProtocol   = 0x80
	opTuple1     = 0x85
	opTuple2     = 0x86
	opTuple3     = 0x87
	opTrue       = 0x88
	opFalse      = 0x89
	opLong       = 0x8a
	pickleNumber = 2 // the protocol
)

// pickled is a value of a pickle: nil, bool, int64, float64, string, *items or *fields.
type pickled any

// items is a list or a tuple, fields a dict. They are referred to, so that a value that occurs often is
// there once. A dict keeps what has a text for its key.
type (
	items  struct{ list []pickled }
	fields struct{ pairs []pair }
	pair   struct {
		key   string
		value pickled
	}
)

// of returns what a dict has under a key, nil when it has nothing.
func (f *fields) of(key string) pickled {
	for _, p := range slices.Backward(f.pairs) {
		if p.key == key {
			return p.value
		}
	}
	return nil
}

var errPickleShort = errors.New("it ends in the middle")

// unpickle reads the plain values of a pickle. Nothing of it is carried out: an opcode that could do
// anything but put a value together is an error, as is a pickle that is broken or beyond the bounds.
// Memory is proportional to the length of src. What it returns may refer to itself.
func unpickle(ctx context.Context, src []byte) (pickled, error) {
	p := unpickler{src: src, memo: map[uint32]pickled{}}
	for n := 0; ; n++ {
		if n > maxPickleOps {
			return nil, fmt.Errorf("it has more than %d opcodes", maxPickleOps)
		}
		if n%pickleLook == 0 && ctx.Err() != nil {
			return nil, fmt.Errorf("it is not read to its end: %w", context.Cause(ctx))
		}
		at := p.at
		done, err := p.step()
		if err != nil {
			return nil, fmt.Errorf("byte %d: %w", at, err)
		}
		if done {
			return p.stack[0], nil
		}
	}
}

// unpickler is a pickle that is being read.
type unpickler struct {
	src   []byte
	at    int
	stack []pickled
	marks []int // lengths of the stack at which containers began
	memo  map[uint32]pickled
}

// step takes one opcode; done means that the value is complete.
func (p *unpickler) step() (done bool, err error) {
	op, err := p.bytes(1)
	if err != nil {
		return false, err
	}
	switch op[0] {
	case opProtocol:
		if n, err := p.bytes(1); err != nil || n[0] != pickleNumber {
			return false, errors.Join(err, fmt.Errorf("it is not of protocol %d", pickleNumber))
		}
		return false, nil
	case opStop:
		if len(p.stack) != 1 || len(p.marks) != 0 {
			return false, errors.New("it stops in the middle")
		}
		return true, nil
	case opMark:
		if len(p.marks) == maxPickleMarks {
			return false, fmt.Errorf("more than %d containers are open", maxPickleMarks)
		}
		p.marks = append(p.marks, len(p.stack))
		return false, nil
	case opPut1, opPut4, opGet1, opGet4:
		return false, p.remember(op[0])
	case opAppend, opAppends, opSetItem, opSetItems, opTuple, opTuple0, opTuple1, opTuple2, opTuple3:
		return false, p.gather(op[0])
	default:
		v, err := p.scalar(op[0])
		if err == nil {
			p.stack = append(p.stack, v)
		}
		return false, err
	}
}

// scalar reads a value that stands for itself, or an empty container.
func (p *unpickler) scalar(op byte) (pickled, error) {
	switch op {
	case opNone:
		return nil, nil
	case opTrue, opFalse:
		return op == opTrue, nil
	case opList:
		return &items{}, nil
	case opDict:
		return &fields{}, nil
	case opInt1:
		n, err := p.number(1)
		return int64(n), err
	case opInt2:
		n, err := p.number(2)
		return int64(n), err
	case opInt4:
		n, err := p.number(4)
		return int64(int32(n)), err //nolint:gosec // the sign is in the top bit
	case opLong:
		return p.long()
	case opFloat:
		b, err := p.bytes(8)
		if err != nil {
			return nil, err
		}
		return math.Float64frombits(binary.BigEndian.Uint64(b)), nil
	case opText:
		n, err := p.number(4)
		if err != nil {
			return nil, err
		}
		b, err := p.bytes(int(n))
		return string(b), err
	default:
		return nil, fmt.Errorf("opcode 0x%02x is refused: a dump holds plain values only", op)
	}
}

// long reads a number of up to 8 bytes, least first, in two's complement.
func (p *unpickler) long() (pickled, error) {
	size, err := p.number(1)
	if err != nil {
		return nil, err
	}
	if size > 8 {
		return nil, fmt.Errorf("a number of %d bytes, 8 are the most", size)
	}
	b, err := p.bytes(int(size))
	if err != nil || size == 0 {
		return int64(0), err
	}
	var n uint64
	for i, one := range b {
		n |= uint64(one) << (8 * i)
	}
	shift := 64 - 8*size
	return int64(n<<shift) >> shift, nil //nolint:gosec // the sign is in the top bit
}

// remember puts the newest value into the memo, or gets one out of it.
func (p *unpickler) remember(op byte) error {
	width := 1
	if op == opPut4 || op == opGet4 {
		width = 4
	}
	n, err := p.number(width)
	if err != nil {
		return err
	}
	if op == opGet1 || op == opGet4 {
		v, ok := p.memo[n]
		if !ok {
			return fmt.Errorf("value %d is asked for and was not kept", n)
		}
		p.stack = append(p.stack, v)
		return nil
	}
	if len(p.stack) == 0 {
		return errors.New("nothing is there to be kept")
	}
	p.memo[n] = p.stack[len(p.stack)-1]
	return nil
}

// gather puts values of the stack together.
func (p *unpickler) gather(op byte) error {
	count := map[byte]int{opAppend: 1, opSetItem: 2, opTuple0: 0, opTuple1: 1, opTuple2: 2, opTuple3: 3}
	n, fixed := count[op]
	floor := 0
	if len(p.marks) > 0 {
		floor = p.marks[len(p.marks)-1]
	}
	if !fixed {
		if len(p.marks) == 0 {
			return errors.New("a container ends that has not begun")
		}
		p.marks = p.marks[:len(p.marks)-1]
		n = len(p.stack) - floor
		floor = 0
		if len(p.marks) > 0 {
			floor = p.marks[len(p.marks)-1]
		}
	}
	if len(p.stack)-n < floor {
		return errors.New("a container has too few values")
	}
	values := p.stack[len(p.stack)-n:]
	p.stack = p.stack[:len(p.stack)-n]
	switch op {
	case opTuple, opTuple0, opTuple1, opTuple2, opTuple3:
		p.stack = append(p.stack, &items{append([]pickled(nil), values...)})
		return nil
	}
	if len(p.stack) <= floor {
		return errors.New("values belong to no container")
	}
	switch into := p.stack[len(p.stack)-1].(type) {
	case *items:
		if op == opAppend || op == opAppends {
			into.list = append(into.list, values...)
			return nil
		}
	case *fields:
		if (op == opSetItem || op == opSetItems) && n%2 == 0 {
			for i := 0; i < n; i += 2 {
				if key, ok := values[i].(string); ok {
					into.pairs = append(into.pairs, pair{key, values[i+1]})
				}
			}
			return nil
		}
	}
	return errors.New("values belong to another kind of container")
}

// number reads an unsigned number, least byte first.
func (p *unpickler) number(width int) (uint32, error) {
	b, err := p.bytes(width)
	if err != nil {
		return 0, err
	}
	var n uint32
	for i, one := range b {
		n |= uint32(one) << (8 * i)
	}
	return n, nil
}

func (p *unpickler) bytes(n int) ([]byte, error) {
	if n < 0 || n > len(p.src)-p.at {
		return nil, errPickleShort
	}
	b := p.src[p.at : p.at+n]
	p.at += n
	return b, nil
}
