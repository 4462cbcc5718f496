package proc

import (
	"bytes"
	"io"
	"slices"
	"strings"
)

// tailBytes bounds what Tail reads from the end of a file.
const tailBytes = 64 << 10

// Tail returns the last n lines of a file, without line ends. It reads at most the last 64 KiB, so a
// very long line comes cut at its beginning; a last line without a line end counts, and what is no
// UTF-8 is replaced by U+FFFD. A file that cannot be read, or is none (see OpenRegular), has no lines. On a
// disk that does not answer it waits: call it where nothing else has to go on. Of a log that lies in several files
// (see Segments) it reads as many as it needs.
func Tail(path string, n int) []string {
	if n <= 0 {
		return nil
	}
	var text []byte
	for _, file := range slices.Backward(Segments(path)) {
		end, _ := lastOf(file, tailBytes-len(text))
		text = append(end, text...)
		if len(text) >= tailBytes || bytes.Count(text, []byte("\n")) > n {
			break
		}
	}
	return LastLines(text, n)
}

// lastOf returns the last bytes of a regular file.
func lastOf(path string, most int) ([]byte, error) {
	f, err := OpenRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.NewSectionReader(f, max(0, st.Size()-int64(most)), int64(most)))
}

// LinesFrom returns the lines of a file from an offset on, as Tail does, out of at most that many bytes.
func LinesFrom(path string, offset, most int64) []string {
	f, err := OpenRegular(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	text, err := io.ReadAll(io.NewSectionReader(f, offset, most))
	if err != nil {
		return nil
	}
	return LastLines(text, len(text))
}

// LastLines returns the last n lines of a text as Tail does.
func LastLines(text []byte, n int) []string {
	if len(text) == 0 || n <= 0 {
		return nil
	}
	text = bytes.TrimSuffix(text, []byte("\n"))
	lines := strings.Split(strings.ToValidUTF8(string(text), "\uFFFD"), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimSuffix(line, "\r")
	}
	return lines[max(0, len(lines)-n):]
}
