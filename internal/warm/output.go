package warm

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// outputLimit is how much of a fork server's output is kept, bytes.
const outputLimit = 1 << 20

// keepOutput copies what modules print while they are imported into a file, which it begins anew, up to
// outputLimit, and reads the rest without keeping it, until nobody can write more. An empty path keeps nothing.
func keepOutput(from *os.File, path string) error {
	defer from.Close()
	defer func() { _, _ = io.Copy(io.Discard, from) }() // nobody waits for a full pipe, whatever becomes of the file
	if path == "" {
		return nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o640)
	if err != nil {
		return fmt.Errorf("keep output of fork server: %w", err)
	}
	defer f.Close()
	_, err = io.CopyN(f, from, outputLimit)
	if errors.Is(err, io.EOF) || errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("keep output of fork server: %w", err)
	}
	if more, _ := io.Copy(io.Discard, from); more > 0 {
		_, err = fmt.Fprintf(f, "\n... %d bytes more were not kept\n", more)
	}
	return err
}
