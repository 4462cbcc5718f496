package proc

import (
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// OpenRegular opens a file for reading that somebody else may have replaced: a worker, a user, a cleaner.
// Only a regular file is opened, and the open never waits, as that of a FIFO without a writer would. A
// symbolic link at the end of the path is refused: it could name a file that its maker may not read. The
// error is an *fs.PathError.
func OpenRegular(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err //nolint:wrapcheck // it says open and the path
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("it is no regular file (%s)", kindOf(info.Mode()))}
	}
	if err != nil {
		f.Close()
		return nil, err //nolint:wrapcheck // it says read and the path
	}
	return f, nil
}

func kindOf(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "directory"
	case m&fs.ModeNamedPipe != 0:
		return "FIFO"
	case m&fs.ModeSocket != 0:
		return "socket"
	default:
		return "device"
	}
}
