package proc

import (
	"bytes"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// inode names a file on this machine.
type inode struct{ dev, ino uint64 }

// mapping is one line of /proc/PID/maps, as far as we read it (proc_pid_maps(5)).
type mapping struct {
	mode string // rwxs or rwxp
	id   inode
}

func (m mapping) sharedWritable() bool { return m.mode[1] == 'w' && m.mode[3] == 's' }

// eachMapping calls f for every file that a process has mapped. Nothing, if we may not look. It reads
// into buf, and returns it for the next process.
func eachMapping(pid int, buf []byte, f func(mapping)) []byte {
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/maps", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return buf
	}
	defer unix.Close(fd)
	for kept := 0; ; {
		if kept == len(buf) {
			buf = append(buf, make([]byte, max(kept, 4096))...)
		}
		n, err := unix.Read(fd, buf[kept:])
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return buf
		}
		rest := buf[:kept+n]
		for {
			line, more, whole := bytes.Cut(rest, []byte{'\n'})
			if !whole {
				break
			}
			if m, ok := parseMapping(line); ok {
				f(m)
			}
			rest = more
		}
		kept = copy(buf, rest)
	}
}

// parseMapping reads "FROM-TO MODE OFFSET MAJOR:MINOR INODE PATH"; false for memory without a file.
func parseMapping(line []byte) (mapping, bool) {
	field := make([][]byte, 0, 5)
	for word := range bytes.FieldsSeq(line) {
		if field = append(field, word); len(field) == 5 {
			break
		}
	}
	if len(field) < 5 || len(field[1]) != 4 || string(field[4]) == "0" {
		return mapping{}, false
	}
	major, minor, ok := strings.Cut(string(field[3]), ":")
	ma, err1 := strconv.ParseUint(major, 16, 32)
	mi, err2 := strconv.ParseUint(minor, 16, 32)
	ino, err3 := strconv.ParseUint(string(field[4]), 10, 64)
	if !ok || err1 != nil || err2 != nil || err3 != nil {
		return mapping{}, false
	}
	return mapping{mode: string(field[1]), id: inode{unix.Mkdev(uint32(ma), uint32(mi)), ino}}, true
}

// inUse says which of the files any process has mapped or open, as far as /proc shows us.
func inUse(files []shmFile) map[shmFile]bool {
	wanted := map[inode]shmFile{}
	names := map[string]bool{}
	for _, f := range files {
		wanted[inode{f.Dev, f.Inode}] = f
		names[f.Name] = true
	}
	used := map[shmFile]bool{}
	mark := func(id inode) {
		if f, ok := wanted[id]; ok {
			used[f] = true
		}
	}
	buf := make([]byte, 64<<10)
	for pid := range readTable() {
		buf = eachMapping(pid, buf, func(m mapping) { mark(m.id) })
		eachOpen(pid, names, mark)
	}
	return used
}

// eachOpen calls f for every file that a process has open under one of the names, in whatever folder:
// other mount namespaces show other paths.
func eachOpen(pid int, names map[string]bool, f func(inode)) {
	folder := "/proc/" + strconv.Itoa(pid) + "/fd/"
	dir, err := os.Open(folder)
	if err != nil {
		return
	}
	defer dir.Close()
	list, _ := dir.Readdirnames(-1)
	var buf [512]byte
	for _, fd := range list {
		n, err := unix.Readlinkat(int(dir.Fd()), fd, buf[:])
		if err != nil || !names[string(buf[bytes.LastIndexByte(buf[:n], '/')+1:n])] {
			continue
		}
		var st unix.Stat_t
		if unix.Fstatat(int(dir.Fd()), fd, &st, 0) == nil {
			f(inode{st.Dev, st.Ino})
		}
	}
}
