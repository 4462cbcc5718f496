package devices

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// What jobs have and wait for is said in the kernel's table of abstract Unix sockets (unix(7)), which has no files,
// no owner and no leftovers: a name lives as long as a process has its socket, and the kernel says whose it is.
//
//	vigil/lock/KEY                       one process of the machine can have it, with what inherits it from it
//	vigil/hold/KEY/JOB/SINCE/NONCE/TITLE which job has the device, once for each controller that has taken it over
//	vigil/wait/KEY/ASKED/NONCE/WANT/TITLE a place in the queue for the device
//	vigil/turn                           held for a moment by a job that takes devices
//
// KEY and JOB are digests, since a name has at most 107 bytes. SINCE is in seconds of the wall clock, ASKED in
// milliseconds since boot, both in base 36.
const (
	lockName = "vigil/lock/"
	holdName = "vigil/hold/"
	waitName = "vigil/wait/"
	turnName = "vigil/turn"
)

// longestName of an abstract socket, in bytes, and the length of a digest.
const (
	longestName = 106
	digestChars = 16
)

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:digestChars/2])
}

// hold is what a vigil/hold name says.
type hold struct {
	key, job string // digests
	since    time.Time
	nonce    string
	title    string // of the job, as it calls itself, cut to fit
}

func (h hold) name() string {
	return cut(fmt.Sprintf("%s%s/%s/%s/%s/%s", holdName, h.key, h.job, strconv.FormatInt(h.since.Unix(), 36), h.nonce, h.title))
}

// wait is what a vigil/wait name says.
type wait struct {
	key   string
	asked int64 // ms since boot
	nonce string
	want  int // how many devices
	title string
}

func (w wait) name() string {
	return cut(fmt.Sprintf("%s%s/%s/%s/%d/%s", waitName, w.key, strconv.FormatInt(w.asked, 36), w.nonce, w.want, w.title))
}

func cut(name string) string { return name[:min(len(name), longestName)] }

// parseHold reads a name; what is not one of ours is none.
func parseHold(name string) (hold, bool) {
	f, ok := fields(name, holdName, 5)
	if !ok || !isDigest(f[0]) || !isDigest(f[1]) {
		return hold{}, false
	}
	since, err := strconv.ParseInt(f[2], 36, 40)
	if err != nil || since < 0 {
		return hold{}, false
	}
	return hold{f[0], f[1], time.Unix(since, 0), f[3], f[4]}, true
}

func parseWait(name string) (wait, bool) {
	f, ok := fields(name, waitName, 5)
	if !ok || !isDigest(f[0]) {
		return wait{}, false
	}
	asked, err1 := strconv.ParseInt(f[1], 36, 62)
	want, err2 := strconv.Atoi(f[3])
	if err := cmp.Or(err1, err2); err != nil || asked < 0 || want < 1 || want > 4096 {
		return wait{}, false
	}
	return wait{f[0], asked, f[2], want, f[4]}, true
}

func fields(name, prefix string, n int) ([]string, bool) {
	rest, ok := strings.CutPrefix(name, prefix)
	f := strings.SplitN(rest, "/", n)
	if !ok || len(f) != n {
		return nil, false
	}
	f[n-1] = title(f[n-1])
	return f, true
}

func isDigest(s string) bool {
	_, err := hex.DecodeString(s)
	return err == nil && len(s) == digestChars
}

// title is a job's name with nothing in it that a terminal or a message could take for more.
func title(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r) {
			return r
		}
		return '_'
	}, s)
}

func nonce() string {
	b := make([]byte, 4)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
