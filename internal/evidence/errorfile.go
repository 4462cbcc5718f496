package evidence

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"vigil/internal/proc"
)

// maxErrorFile bounds what is read of an error file, and maxMessage what is kept of its message, in
// bytes.
const (
	maxErrorFile = 1 << 20
	maxMessage   = 16 << 10
)

// ErrorFile is what a worker wrote when its function raised.
type ErrorFile struct {
	Message string    // in one piece, perhaps of several lines
	At      time.Time // when it was raised: as the file says, to the second, else when it was written
	Written time.Time // when the file was written
}

// Before reports whether e was raised before other. The file's own times are whole seconds; within one
// the time of writing decides.
func (e ErrorFile) Before(other ErrorFile) bool {
	if d := e.At.Unix() - other.At.Unix(); d != 0 {
		return d < 0
	}
	return e.Written.Before(other.Written)
}

// ErrorFiles returns where the ranks of one incarnation write their error files, whichever service runs
// them, below the folder of its logs on this machine: of each rank its newest attempt's. Whether there
// is one is not said.
func ErrorFiles(dir string) map[int]string {
	files := map[int]string{}
	for rank, attempt := range lives(dir) {
		files[rank] = filepath.Join(dir, fmt.Sprintf("%d.%d", rank, attempt), "error.json")
	}
	return files
}

// ReadErrorFile reads the file that @record of torch.distributed.elastic writes when its function
// raises (torch/distributed/elastic/multiprocessing/errors/error_handler.py): JSON whose "message" is a
// text, or holds "message" and "extraInfo" with a "timestamp" in seconds. The error wraps
// fs.ErrNotExist when there is none, and else says what is wrong with it: no regular file, larger than
// 1 MiB, no JSON, or without a message.
func ReadErrorFile(path string) (ErrorFile, error) {
	f, err := proc.OpenRegular(path)
	if err != nil {
		return ErrorFile{}, fmt.Errorf("read error file %s: %w", path, bare(err))
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return ErrorFile{}, fmt.Errorf("read error file: %w", err)
	}
	if info.Size() > maxErrorFile {
		return ErrorFile{}, fmt.Errorf("read error file %s: it has %d bytes, more than %d are not read", path, info.Size(), maxErrorFile)
	}
	src, err := io.ReadAll(io.LimitReader(f, maxErrorFile))
	if err != nil {
		return ErrorFile{}, fmt.Errorf("read error file: %w", err)
	}
	e := ErrorFile{Written: info.ModTime(), At: info.ModTime()}
	if err := e.parse(src); err != nil {
		return ErrorFile{}, fmt.Errorf("read error file %s: %w", path, err)
	}
	return e, nil
}

// stamp is a time in seconds, as a number or as a text.
type stamp struct{ time.Time }

// UnmarshalJSON takes what is no time for none.
func (s *stamp) UnmarshalJSON(src []byte) error {
	if n, err := strconv.ParseFloat(strings.Trim(string(src), `" `), 64); err == nil && n > 0 && n < 1e11 {
		s.Time = time.Unix(int64(n), 0)
	}
	return nil
}

func (e *ErrorFile) parse(src []byte) error {
	var file struct {
		Message   json.RawMessage
		Timestamp stamp
	}
	if err := json.Unmarshal(src, &file); err != nil {
		return fmt.Errorf("it is no JSON: %w", err)
	}
	var nested struct {
		Message   string
		ExtraInfo struct{ Timestamp stamp }
	}
	at := file.Timestamp
	if json.Unmarshal(file.Message, &e.Message) != nil {
		if json.Unmarshal(file.Message, &nested) != nil {
			return errors.New("its message is neither a text nor an object with one")
		}
		e.Message, at = nested.Message, nested.ExtraInfo.Timestamp
	}
	if e.Message = strings.TrimSpace(strings.ToValidUTF8(e.Message, "\uFFFD")); e.Message == "" {
		return errors.New("it has no message")
	}
	if len(e.Message) > maxMessage {
		e.Message = strings.ToValidUTF8(e.Message[:maxMessage], "") + " ..."
	}
	if !at.IsZero() {
		e.At = at.Time
	}
	return nil
}
