package proc

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A log that has grown too large lies in several files: what was written first at NAME.first.log, then at NAME.N.log with
// growing numbers, of which the oldest may be gone, and the newest at NAME.log.

const logSuffix = ".log"

// FirstSegment is where the beginning of a log lies once the log has been put aside for the first time.
func FirstSegment(path string) string {
	return strings.TrimSuffix(path, logSuffix) + ".first" + logSuffix
}

// NumberedSegment is where a later part of a log lies.
func NumberedSegment(path string, n int) string {
	return fmt.Sprintf("%s.%d%s", strings.TrimSuffix(path, logSuffix), n, logSuffix)
}

// Numbered returns the numbers of a log's parts, ascending, but for the first and the newest.
func Numbered(path string) []int {
	stem := filepath.Base(strings.TrimSuffix(path, logSuffix)) + "."
	files, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil
	}
	var all []int
	for _, f := range files {
		middle, ofLog := strings.CutPrefix(f.Name(), stem)
		middle, isPart := strings.CutSuffix(middle, logSuffix)
		if !ofLog || !isPart {
			continue
		}
		if n, err := strconv.Atoi(middle); err == nil && n > 0 && strconv.Itoa(n) == middle {
			all = append(all, n)
		}
	}
	slices.SortFunc(all, func(a, b int) int { return cmp.Compare(a, b) })
	return all
}

// Segments returns the files of a log, the oldest first, those that are there.
func Segments(path string) []string {
	var all []string
	if _, err := os.Lstat(FirstSegment(path)); err == nil {
		all = append(all, FirstSegment(path))
	}
	for _, n := range Numbered(path) {
		all = append(all, NumberedSegment(path, n))
	}
	if _, err := os.Lstat(path); err == nil || len(all) == 0 {
		all = append(all, path)
	}
	return all
}
