package journal

import (
	"bytes"
	"slices"
	"testing"
)

// A file of which any part was written over, or is missing, is refused, or has exactly what was there after one of its
// commits.
func FuzzADamagedJournalIsRefusedOrWhole(f *testing.F) {
	small, large := smallJournal(f), largeJournal(f)
	states := slices.Concat(small, large)
	whole := slices.Concat(small[1:], large[1:])                                   // of which the state before the newest commit is known too
	f.Add(uint8(0), uint32(0), []byte{1}, uint32(0))                               // the first page
	f.Add(uint8(1), uint32(pageSize+16), bytes.Repeat([]byte{0xff}, 8), uint32(0)) // the second
	f.Add(uint8(5), uint32(2*pageSize), make([]byte, pageSize), uint32(0))
	f.Add(uint8(7), uint32(3*pageSize), []byte("\x00\x01\x02"), uint32(1))
	f.Add(uint8(9), uint32(0), []byte{}, uint32(pageSize))
	f.Fuzz(func(t *testing.T, which uint8, at uint32, over []byte, cut uint32) {
		file := bytes.Clone(whole[int(which)%len(whole)].bytes)
		copy(file[int(at)%len(file):], over)
		file = file[:len(file)-int(cut)%len(file)]
		if checked(file) == nil {
			verdict(t, "what is taken for whole", file, states...)
		}
	})
}
