package command

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"vigil/internal/job"
	"vigil/internal/proc"
)

// closeInherited closes what the caller has left open, which would otherwise be held for as long as the job runs. Values
// of flags may name descriptors, wherever they are from; systemd may have handed some over (sd_listen_fds(3)). The error
// is about the job: a command of its workers names one.
func (p *program) closeInherited(fs *pflag.FlagSet, j *job.Job) error {
	if err := checkDescriptors(j, p.inherited); err != nil {
		return err
	}
	needed := map[int]bool{}
	fs.VisitAll(func(f *pflag.Flag) {
		for _, fd := range descriptorsIn(f.Value.String()) {
			needed[fd] = true
		}
	})
	handed := 0
	if os.Getenv("LISTEN_PID") == strconv.Itoa(os.Getpid()) {
		handed, _ = strconv.Atoi(os.Getenv("LISTEN_FDS"))
	}
	p.inherited.Close(func(fd int) bool { return needed[fd] || fd < 3+handed })
	return nil
}

// byDescriptor matches a path that stands for a descriptor of the program that opens it.
var byDescriptor = regexp.MustCompile(`/(?:dev|proc/(?:self|thread-self))/fd/([0-9]+)`)

func descriptorsIn(text string) []int {
	var found []int
	for _, m := range byDescriptor.FindAllStringSubmatch(text, -1) {
		if fd, err := strconv.Atoi(m[1]); err == nil {
			found = append(found, fd)
		}
	}
	return found
}

// checkDescriptors refuses commands of workers that name a descriptor of the caller, as a shell's <(...) does: a worker
// does not have it, and is started more than once.
func checkDescriptors(j *job.Job, inherited proc.Inherited) error {
	for i := range j.Roles {
		for _, word := range j.Roles[i].Argv() {
			_, value, _ := strings.Cut(word, "=")
			for _, path := range []string{word, value} {
				at := byDescriptor.FindStringSubmatchIndex(path)
				if at == nil || at[0] != 0 || at[1] != len(path) {
					continue
				}
				if fd, err := strconv.Atoi(path[at[2]:at[3]]); err == nil && slices.Contains(inherited, fd) {
					return fmt.Errorf("role %s: %s is open in the caller only, such as by <(...) of a shell: workers do not have it, and are started more than once; write it to a file", j.Roles[i].Name, word)
				}
			}
		}
	}
	return nil
}
