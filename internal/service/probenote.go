package service

import (
	"io"
	"os"

	"golang.org/x/sys/unix"

	"vigil/internal/proc"
)

const (
	// noteSize is how much a probe may write on standard error, in bytes. Beyond it, its writes fail.
	noteSize = 1 << 20
	// lineSize is how much of a line goes into a failure's detail, in bytes.
	lineSize = 300
)

// openNote returns a file in memory for what one probe writes; nil, which is no place, where the kernel has none. Unlike a
// pipe it holds nobody up: not the probe, and not who waits for the end of what the probe has left behind.
func openNote() *os.File {
	fd, err := unix.MemfdCreate("probe", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), "probe")
	if err := f.Truncate(noteSize); err != nil {
		f.Close()
		return nil
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_GROW|unix.F_SEAL_SHRINK); err != nil {
		f.Close()
		return nil
	}
	return f
}

// lastLine returns the last line of a note after ": ", such as the end of a traceback; empty where nothing is written.
func lastLine(note *os.File) string {
	if note == nil {
		return ""
	}
	end, err := note.Seek(0, io.SeekCurrent) // the probe has moved it: the file is open once
	if err != nil || end <= 0 {
		return ""
	}
	begin := max(0, end-4<<10)
	text := make([]byte, end-begin)
	n, err := note.ReadAt(text, begin)
	if err != nil && err != io.EOF {
		return ""
	}
	lines := proc.LastLines(text[:n], 1)
	if len(lines) == 0 {
		return ""
	}
	return ": " + string(lines[0][:min(len(lines[0]), lineSize)])
}
