package proc

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// NotOursError says that a file or folder is not to be used: another user made it, may write to it, or has set the
// symbolic link that leads to it.
type NotOursError struct {
	Path  string      // the file or folder, or the link on the way to it
	Owner int         // uid
	Mode  fs.FileMode // as of os.Lstat
}

func (e *NotOursError) Error() string {
	us := os.Geteuid()
	switch {
	case e.Mode&fs.ModeSymlink != 0:
		return fmt.Sprintf("%s is a symbolic link that belongs to %s, we are %s", e.Path, UserName(e.Owner), UserName(us))
	case e.Owner != us:
		return fmt.Sprintf("%s belongs to %s, mode %s, we are %s", e.Path, UserName(e.Owner), e.Mode, UserName(us))
	default:
		return fmt.Sprintf("%s belongs to us, and its mode %s lets others write to it: chmod go-w %s after a look at what is in it", e.Path, e.Mode, e.Path)
	}
}

// UserName says who a user is: "user 1000 (ann)", without a name where the machine knows none.
func UserName(uid int) string {
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return fmt.Sprintf("user %d (%s)", uid, u.Username)
	}
	return fmt.Sprintf("user %d", uid)
}

// checkOurs refuses what is not ours alone to write to, with a *NotOursError; st is of an open file.
func checkOurs(path string, st *unix.Stat_t) error {
	if int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return &NotOursError{Path: path, Owner: int(st.Uid), Mode: modeOf(st)}
	}
	return nil
}

// CheckFile refuses an open file that is no regular one, or not ours alone to write to; the latter is a *NotOursError.
func CheckFile(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("look at %s: %w", f.Name(), err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return fmt.Errorf("%s is no regular file (%s)", f.Name(), kindOf(modeOf(&st)))
	}
	return checkOurs(f.Name(), &st)
}

// modeOf is the mode of a folder, link or file as package fs has it.
func modeOf(st *unix.Stat_t) fs.FileMode {
	mode := fs.FileMode(st.Mode & 0o777)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		mode |= fs.ModeDir
	case unix.S_IFLNK:
		mode |= fs.ModeSymlink
	case unix.S_IFIFO:
		mode |= fs.ModeNamedPipe
	case unix.S_IFSOCK:
		mode |= fs.ModeSocket
	case unix.S_IFREG:
	default:
		mode |= fs.ModeDevice
	}
	if st.Mode&unix.S_ISVTX != 0 {
		mode |= fs.ModeSticky
	}
	return mode
}

// MakeFolder makes a folder and those above it that are missing, each with that mode, or checks the one that is there,
// and opens it. It must be ours, nobody else may write to it, and no symbolic link that leads to it may be another
// user's than ours or root's: else the error is a *NotOursError. Errors name the folder that they are about.
func MakeFolder(path string, mode fs.FileMode) (*os.File, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("find the working directory: %w", err)
	}
	// Twice: somebody may set a link between the look and the making.
	if _, err := makeAll(path, mode); err != nil {
		return nil, err
	}
	real, err := resolve(path)
	if err != nil {
		return nil, err
	}
	return openFolder(real)
}

// makeAll makes what is missing of a folder, and returns its path without symbolic links.
func makeAll(path string, mode fs.FileMode) (string, error) {
	real, err := resolve(path)
	if !errors.Is(err, fs.ErrNotExist) || path == "/" {
		return real, err
	}
	above, err := makeAll(filepath.Dir(path), mode)
	if err != nil {
		return "", err
	}
	real = filepath.Join(above, filepath.Base(path))
	if err := os.Mkdir(real, mode); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("make folder %s: %w", path, bare(err))
	}
	return real, nil
}

// OpenFolder opens a folder that is there, as MakeFolder does.
func OpenFolder(path string) (*os.File, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("find the working directory: %w", err)
	}
	real, err := resolve(path)
	if err != nil {
		return nil, err
	}
	return openFolder(real)
}

// openFolder opens and checks a folder whose path has no symbolic links. Where the kernel can (5.6), it refuses one that
// has been set since.
func openFolder(real string) (*os.File, error) {
	how := unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC | unix.O_NOFOLLOW, Resolve: unix.RESOLVE_NO_SYMLINKS}
	fd, err := unix.Openat2(unix.AT_FDCWD, real, &how)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) { // an old kernel, or a sandbox that does not know it
		fd, err = unix.Open(real, int(how.Flags), 0)
	}
	switch {
	case errors.Is(err, unix.ENOTDIR):
		return nil, fmt.Errorf("%s is no folder: %w", real, err)
	case err != nil:
		return nil, fmt.Errorf("open folder %s: %w", real, err)
	}
	f := os.NewFile(uintptr(fd), real)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		f.Close()
		return nil, fmt.Errorf("look at folder %s: %w", real, err)
	}
	if err := checkOurs(real, &st); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// mostLinks is how many symbolic links a path may lead over, as in the kernel (path_resolution(7)).
const mostLinks = 40

// resolve follows the symbolic links in an absolute path, and refuses one of another user than us and root. The error
// wraps fs.ErrNotExist where something of the path is missing.
func resolve(path string) (string, error) {
	left := strings.Split(filepath.Clean(path), "/")
	real := "/"
	for links := 0; len(left) > 0; {
		name := left[0]
		left = left[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			real = filepath.Dir(real)
			continue
		}
		at := filepath.Join(real, name)
		var st unix.Stat_t
		if err := unix.Lstat(at, &st); err != nil {
			return "", fmt.Errorf("look at %s: %w", at, err)
		}
		if st.Mode&unix.S_IFMT != unix.S_IFLNK {
			real = at
			continue
		}
		if !setsLinks(int(st.Uid)) {
			return "", &NotOursError{Path: at, Owner: int(st.Uid), Mode: modeOf(&st)}
		}
		to, err := os.Readlink(at)
		if err != nil {
			return "", fmt.Errorf("read link %s: %w", at, bare(err))
		}
		if links++; links > mostLinks {
			return "", fmt.Errorf("look at %s: %w", path, unix.ELOOP)
		}
		if filepath.IsAbs(to) {
			real = "/"
		}
		left = append(strings.Split(to, "/"), left...)
	}
	return real, nil
}

// setsLinks says whether links of that user are followed: ours, and those of root, who may do everything in any case. In
// a user namespace that does not know root's uid the kernel shows another in its place (user_namespaces(7)).
func setsLinks(uid int) bool {
	return uid == 0 || uid == os.Geteuid() || uid == overflowUID && !isMapped(overflowUID)
}

// overflowUID is shown for users that a user namespace does not know.
const overflowUID = 65534

// isMapped says whether our user namespace knows that uid.
func isMapped(uid int) bool {
	text, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return true
	}
	for _, line := range strings.Split(string(text), "\n") {
		words := strings.Fields(line)
		if len(words) != 3 {
			continue
		}
		first, _ := strconv.Atoi(words[0])
		n, _ := strconv.Atoi(words[2])
		if uid >= first && uid < first+n {
			return true
		}
	}
	return false
}

// Replace replaces a file: another is made beside it, which takes its name. Neither a link nor a file that somebody
// has put there is written to. Several may do so at once.
func Replace(path string, content []byte, mode fs.FileMode) error {
	var word [4]byte
	_, _ = rand.Read(word[:]) // never fails (crypto/rand)
	return ReplaceBy(path, fmt.Sprintf("%s.%x.new", path, word), content, mode)
}

// ReplaceBy is Replace with the name of the file that is made, which one at a time may use.
func ReplaceBy(path, making string, content []byte, mode fs.FileMode) error {
	if err := os.Remove(making); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("write %s: %w", path, bare(err))
	}
	f, err := os.OpenFile(making, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, mode)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, bare(err))
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(making, path)
	}
	if err != nil {
		_ = os.Remove(making)
		return fmt.Errorf("write %s: %w", path, bare(err))
	}
	return nil
}
