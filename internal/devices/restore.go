package devices

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// Restore takes the locks again whose files have been removed. The error names devices that somebody else
// has locked meanwhile, or whose lock cannot be made.
func (c *Claim) Restore() error {
	if len(c.Devices) == 0 {
		return nil
	}
	if err := os.MkdirAll(c.options.Dir, 0o700); err != nil {
		return fmt.Errorf("claim devices again: %w", err)
	}
	var errs []error
	for _, d := range c.Devices {
		path := filepath.Join(c.options.Dir, d.key())
		if c.stands(path) {
			continue
		}
		f, holder, err := lock(path, c.options.Job)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("claim device %s again: %w", d.ID, err))
		case holder != "":
			errs = append(errs, fmt.Errorf("claim device %s again: it is locked by %s", d.ID, holder))
		case f != nil:
			c.files = append(c.files, f)
		}
	}
	return errors.Join(errs...)
}

// stands says whether the file at the path is one that the claim has locked.
func (c *Claim) stands(path string) bool {
	there, err := os.Stat(path)
	return err == nil && slices.ContainsFunc(c.files, func(f *os.File) bool {
		ours, err := f.Stat()
		return err == nil && os.SameFile(there, ours)
	})
}
