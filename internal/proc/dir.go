package proc

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// socketPathMax is the longest path of a Unix socket, in bytes: sun_path less the final zero (unix(7)).
const socketPathMax = len(unix.RawSockaddrUnix{}.Path) - 1

// longestName is room that a runtime directory must leave for the name of a socket in it.
const longestName = len("/vigil-0123456789abcdef.sock")

// Dir is the runtime directory: sockets and machine-wide locks of one user. It is private (0700) and
// ours.
type Dir struct{ path string }

// DefaultDir is where the runtime directory lies when nobody says otherwise: /run/vigil for root,
// /tmp/vigil-UID for others. Its path is short and never on a network file system.
func DefaultDir() string {
	if uid := os.Geteuid(); uid != 0 {
		return "/tmp/vigil-" + strconv.Itoa(uid)
	}
	return "/run/vigil"
}

// OpenDir makes the runtime directory, or checks the one that is there; an empty path is DefaultDir. It
// refuses a path that is a symbolic link, no directory or too long to hold sockets, and with a *NotOursError one that
// another user has made or can write to, or that another user's link leads to. One that others may list is closed to
// them; that they may pass through it stays. The error names the flag that helps.
func OpenDir(path string) (Dir, error) {
	if path == "" {
		path = DefaultDir()
	}
	d, err := openDir(path)
	if err != nil {
		return Dir{}, fmt.Errorf("open runtime directory %s: %w; --runtime-dir names another", path, err)
	}
	return d, nil
}

func openDir(path string) (Dir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return Dir{}, err
	}
	if len(path)+longestName > socketPathMax {
		return Dir{}, fmt.Errorf("the path has %d bytes, sockets in it can have at most %d: choose one of at most %d bytes",
			len(path), socketPathMax, socketPathMax-longestName)
	}
	above, err := makeAll(filepath.Dir(path), 0o755)
	if err != nil {
		return Dir{}, err
	}
	real := filepath.Join(above, filepath.Base(path))
	if err := os.Mkdir(real, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return Dir{}, bare(err)
	}
	if st, err := os.Lstat(real); err == nil && st.Mode()&fs.ModeSymlink != 0 {
		return Dir{}, errors.New("it is a symbolic link")
	}
	f, err := openFolder(real)
	if err != nil {
		return Dir{}, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return Dir{}, err
	}
	if st.Mode().Perm()&^0o011 != 0o700 {
		if err := f.Chmod(0o700); err != nil {
			return Dir{}, bare(err)
		}
	}
	return Dir{path: path}, nil
}

func fileOwner(path string) (int, bool) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return 0, false
	}
	return int(st.Uid), true
}

// Path is the absolute path of the directory.
func (d Dir) Path() string { return d.path }

// Socket returns a path for a new socket: PREFIX-16hex.sock, random and unused.
func (d Dir) Socket(prefix string) (string, error) {
	var word [8]byte
	_, _ = rand.Read(word[:]) // never fails (crypto/rand)
	path := filepath.Join(d.path, prefix+"-"+hex.EncodeToString(word[:])+socketSuffix)
	return path, CheckSocketPath(path)
}

// Lock takes the machine-wide lock of that name, such as "device-4". Its errors are those of the
// function Lock.
func (d Dir) Lock(name string) (*FileLock, error) {
	folder, err := d.folder("locks")
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	return Lock(filepath.Join(folder, name+lockSuffix))
}

// LetThrough lets other users pass through the directory, without listing it: for workers that run as another user. What
// lies in it says itself whom it is for.
func (d Dir) LetThrough() error {
	f, err := OpenFolder(d.path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Chmod(0o711)
}

// check refuses a directory that is not ours any more. One that is gone is none of its matter.
func (d Dir) check() error {
	f, err := OpenFolder(d.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return f.Close()
}

// folder makes a folder in the directory, or checks the one that is there, and returns its path.
func (d Dir) folder(name string) (string, error) {
	path := filepath.Join(d.path, name)
	f, err := MakeFolder(path, 0o700)
	if err != nil {
		return "", err
	}
	return path, f.Close()
}

// SeatOf names the seat of a service of a job.
func SeatOf(job, role string, index int) string { return fmt.Sprintf("%s-%s-%d", job, role, index) }

// Seat takes the lock of that name for as long as this program lives. It is Lock for who may be killed: Sweep
// removes the file of a seat that nobody has.
func (d Dir) Seat(name string) (*FileLock, error) {
	return Lock(filepath.Join(d.path, name+seatSuffix))
}

// Sitter returns who has the seat of that name, and whether anybody has.
func (d Dir) Sitter(name string) (Ident, bool) {
	seat, err := d.Seat(name)
	if err == nil {
		_ = seat.Unlock()
		return Ident{}, false
	}
	held := new(LockedError)
	if !errors.As(err, &held) {
		return Ident{}, false
	}
	who, err := Identify(held.PID)
	return who, err == nil && who.Alive()
}

// SitterIn returns who has the seat of that name in a directory that somebody else names, and whether anybody has. It
// changes nothing, and believes only a directory and a file that are ours.
func SitterIn(dir, name string) (Ident, bool) {
	path := filepath.Join(dir, name+seatSuffix)
	var folder, file unix.Stat_t
	if unix.Lstat(dir, &folder) != nil || unix.Lstat(path, &file) != nil || folder.Mode&unix.S_IFMT != unix.S_IFDIR || file.Mode&unix.S_IFMT != unix.S_IFREG {
		return Ident{}, false
	}
	if us := uint32(os.Geteuid()); folder.Uid != us || folder.Mode&0o022 != 0 || file.Uid != us {
		return Ident{}, false
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return Ident{}, false
	}
	defer f.Close() // and with it the lock, if we get it
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); err == nil || !errors.Is(err, unix.EWOULDBLOCK) {
		return Ident{}, false
	}
	who, err := Identify(holder(path))
	return who, err == nil && who.Alive()
}

// CheckSocketPath says whether a Unix socket can have that path: not longer than the platform takes,
// nothing there yet, and a folder for it.
func CheckSocketPath(path string) error {
	if len(path) > socketPathMax {
		return fmt.Errorf("make socket %s: the path has %d bytes, the platform takes %d", path, len(path), socketPathMax)
	}
	if st, err := os.Stat(filepath.Dir(path)); err != nil || !st.IsDir() {
		return fmt.Errorf("make socket %s: there is no directory %s", path, filepath.Dir(path))
	}
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("make socket %s: the file exists", path)
	}
	return nil
}

// CompanionOf is the path of a file that belongs to a socket and is removed with it by Sweep: the
// socket's, with the suffix instead of "sock". Make it when the socket listens.
func CompanionOf(socket, suffix string) string {
	return strings.TrimSuffix(socket, socketSuffix) + "." + suffix
}

// Sweep removes sockets in the directory, at any depth, on which nobody listens, the files that belong to
// sockets that are gone, seats that nobody has, and notes of processes that are gone: leftovers of programs that were killed. It returns the
// sockets' paths.
func (d Dir) Sweep() ([]string, error) {
	var removed, companions, owns []string
	var errs []error
	if err := d.check(); err != nil {
		return nil, fmt.Errorf("sweep: %w", err)
	}
	err := filepath.WalkDir(d.path, func(path string, item fs.DirEntry, err error) error {
		if err != nil {
			if path == d.path {
				return err
			}
			return nil // removed meanwhile, or not ours to look into
		}
		if item.IsDir() && strings.HasSuffix(path, ownSuffix) {
			owns = append(owns, path)
			return nil
		}
		if item.Type().IsRegular() && slices.Contains(companionSuffixes, filepath.Ext(path)) {
			companions = append(companions, path)
		}
		if item.Type().IsRegular() && strings.HasSuffix(path, seatSuffix) {
			errs = append(errs, sweepSeat(path))
		}
		if item.Type().IsRegular() && strings.HasSuffix(path, treeNoteSuffix) {
			errs = append(errs, sweepTreeNote(path))
		}
		if item.Type()&fs.ModeSocket == 0 || isBeingMade(item.Name()) {
			return nil
		}
		gone, err := RemoveStale(path)
		if gone {
			removed = append(removed, path)
		}
		errs = append(errs, err)
		return nil
	})
	if err != nil {
		errs = append(errs, fmt.Errorf("sweep %s: %w", d.path, bare(err)))
	}
	for _, path := range companions {
		socket := strings.TrimSuffix(path, filepath.Ext(path)) + socketSuffix
		if _, err := os.Lstat(socket); errors.Is(err, fs.ErrNotExist) {
			_ = os.Remove(path) // whoever owned it may have done so too
		}
	}
	for _, path := range owns {
		base := strings.TrimSuffix(path, ownSuffix)
		if Gone(base+notifySuffix) && Gone(base+socketSuffix) {
			_ = os.RemoveAll(path)
		}
	}
	return removed, errors.Join(errs...)
}

// OwnFolder is the path of the folder that belongs to a notify socket or a service's socket, and is removed with it by
// Sweep. Make it when the socket is there.
func OwnFolder(socket string) string {
	return strings.TrimSuffix(socket, filepath.Ext(socket)) + ownSuffix
}

// NotifySocket is a path in the directory for a new notify socket.
func (d Dir) NotifySocket(name string) string { return filepath.Join(d.path, name+notifySuffix) }

// sweepSeat removes the file of a seat whose holder has died. One that is being taken is left alone.
func sweepSeat(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil //nolint:nilerr // removed meanwhile
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return nil //nolint:nilerr // it has not been written yet
	}
	if isAlive(pid) {
		return nil
	}
	seat, err := Lock(path)
	if err != nil {
		return nil //nolint:nilerr // somebody has it by now
	}
	return seat.Unlock()
}

// companionSuffixes end the names of files that belong to a socket.
var companionSuffixes = []string{".peers", ".new"}

const (
	notifySuffix = ".up"
	ownSuffix    = ".own"
	socketSuffix = ".sock"
	seatSuffix   = ".seat"
)

// isBeingMade says whether a name is of a socket whose maker lives and has not come to listening.
func isBeingMade(name string) bool {
	maker, ok := strings.CutPrefix(name, unborn)
	if !ok {
		return false
	}
	maker, _, _ = strings.Cut(maker, "-")
	pid, err := strconv.Atoi(maker)
	return err == nil && isAlive(pid)
}

func isAlive(pid int) bool {
	who, err := Identify(pid)
	return err == nil && who.Alive()
}

// RemoveStale removes the Unix socket at path if it is ours and nobody listens on it, and says whether
// it did. A path at which there is nothing is no error.
func RemoveStale(path string) (bool, error) {
	st, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("remove stale socket %s: %w", path, bare(err))
	}
	if uid, ok := fileOwner(path); st.Mode()&fs.ModeSocket == 0 || !ok || uid != os.Geteuid() || !refuses(path) {
		return false, nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("remove stale socket %s: %w", path, bare(err))
	}
	return true, nil
}

// refuses is proof that nobody has the socket open: connecting is refused, for the kind that it is.
func refuses(path string) bool {
	for _, network := range []string{"unix", "unixgram"} {
		c, err := net.DialTimeout(network, path, time.Second)
		if err == nil {
			c.Close()
			return false
		}
		if !errors.Is(err, unix.EPROTOTYPE) {
			return errors.Is(err, unix.ECONNREFUSED)
		}
	}
	return false
}
