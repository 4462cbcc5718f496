package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
)

// patience is how long a script waits for anything on a machine that is busy.
const patience = 4 * time.Minute

// nobody is the ordinary user that "-nobody" stands for.
const nobody = 65534

// commands are what scripts may use beyond testscript's own.
var commands = map[string]func(ts *testscript.TestScript, neg bool, args []string){
	"start":        start,       // [-nobody|-uid=N] [KEY=VALUE...] NAME PROGRAM ARGS...: begin a controller and wait until it answers; sets URL, UID, PID
	"ended":        ended,       // NAME CODE: wait for the end of a controller
	"exits":        exits,       // [-nobody] [KEY=VALUE...] CODE PROGRAM ARGS...: run a program to its end
	"log":          logged,      // NAME REGEXP...: wait until the log has these, in this order; "! log" looks once
	"get":          get,         // [-STATUS] PATH|URL: GET, the body is stdout
	"post":         post,        // [-STATUS] PATH|URL [BODY]: the same by POST; the body may be @FILE
	"role":         awaitRole,   // ROLE FIELD=VALUE|FIELD>=N|FIELD~REGEXP...: wait until all hold
	"worker":       awaitWorker, // ROLE RANK FIELD...: the same for one of its workers
	"job":          awaitJob,    // the same for the job
	"incident":     awaitOne,    // ROLE FIELD...: the same for the newest incident of a role
	"keep":         keep,        // VAR ROLE FIELD [RANK]: remember a field of a role, or of one of its workers once it is there
	"service":      servicePID,  // VAR ROLE/INDEX: remember the pid of a service
	"signal":       signalTo,    // SIGNAL PID...
	"again":        again,       // SIGNAL: send it to the newest controller until that has ended, as a person does who is in a hurry
	"gone":         gone,        // PID...: wait until none of them is there; "! gone" looks once
	"equal":        equal,       // A B
	"more":         more,        // A B: A is a greater number than B
	"until":        untilFile,   // FILE REGEXP: wait until a file has it
	"quiet":        quiet,       // FILE: wait until nobody has written to it for a second, such as a journal that is up to date
	"insist":       insist,      // REGEXP PROGRAM ARGS...: run a program, which must succeed, again and again until its output has it
	"nothing-left": nothingLeft, // [PORT|@FILE...]: nothing of the jobs of this script is there, nor a listener on these ports
	"no-zombies":   noZombies,   // PID...: wait until none of them is the parent of a zombie
	"trespass":     trespass,    // UID CONTROLLER [SERVICE|@FILE...]: that user tries every endpoint at these URLs, and gets metrics and probes only
	"untold":       untold,      // FILE FOLDER: the secrets of the URLs in FILE, an environment, stand in no log, answer, file of FOLDER or command line
	"crowd":        crowd,       // idle|streams N [URL|@FILE]: connections that stay open until the script ends; sets OPEN and REFUSED
	"junk":         junk,        // random bytes on the controller's port and on every socket of the runtime directory
	"tools":        tools,       // DIR nvidia-smi|rocm-smi|npu-smi: a stand-in with eight devices, used by whom DIR/users says
}

type stageKey struct{}

// stage is what one script has going on.
type stage struct {
	dir       string
	inherited []string
	runs      map[string]*run
	url, uid  string
}

// run is one controller.
type run struct {
	cmd    *exec.Cmd
	log    string // path
	uid    string // of its job
	done   chan struct{}
	status int
}

func on(ts *testscript.TestScript) *stage { return ts.Value(stageKey{}).(*stage) }

// close ends what the script has left running. It returns what the race detector saw in the programs.
func (s *stage) close() (races string) {
	for _, r := range s.runs {
		_ = r.cmd.Process.Kill()
		<-r.done
	}
	for _, p := range marked("") {
		if strings.Contains(p.environ, s.dir) {
			_ = syscall.Kill(p.pid, syscall.SIGKILL)
		}
	}
	logs, _ := filepath.Glob(filepath.Join(s.dir, "race.*"))
	for _, path := range logs {
		races += read(path)
	}
	_ = os.Remove(filepath.Join(memoryCgroup, filepath.Base(s.dir))) // where a script has made one
	_ = os.RemoveAll(s.dir)
	return races
}

// eventually calls look until it returns nil.
func eventually(ts *testscript.TestScript, look func() error) {
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(15 * time.Millisecond)
	defer tick.Stop()
	for {
		err := look()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("after %s: %v", patience, err)
		}
		<-tick.C
	}
}

// want takes neg or a wrong number of arguments for a mistake in the script.
func want(ts *testscript.TestScript, neg bool, args []string, least int) {
	if neg || len(args) < least {
		ts.Fatalf("a mistake in the script: negated, or too few arguments")
	}
}

// program makes the command of "[-nobody|-uid=N] [KEY=VALUE...] FIRST PROGRAM ARGS..." and returns FIRST.
func program(ts *testscript.TestScript, args []string) (string, *exec.Cmd) {
	s := on(ts)
	var env []string
	for _, name := range s.inherited {
		env = append(env, name+"="+ts.Getenv(name))
	}
	user := uint32(nobody)
	other := len(args) > 0 && args[0] == "-nobody"
	if as, ok := strings.CutPrefix(args[0], "-uid="); ok {
		n, err := strconv.ParseUint(as, 10, 32)
		ts.Check(err)
		user, other = uint32(n), true
	}
	if other {
		args = args[1:]
	}
	for len(args) > 0 && strings.Contains(args[0], "=") {
		env, args = append(env, args[0]), args[1:]
	}
	if len(args) < 2 {
		ts.Fatalf("a mistake in the script: no program")
	}
	path := args[1]
	if !strings.Contains(path, "/") {
		var err error
		path, err = exec.LookPath(path)
		ts.Check(err)
	}
	cmd := exec.Command(path, args[2:]...)
	cmd.Args[0] = args[1]
	cmd.Dir = ts.MkAbs(".")
	cmd.Env = env
	if other {
		cmd.Dir = s.dir
		cmd.Env = append(cmd.Env, "HOME="+s.dir, "XDG_STATE_HOME="+filepath.Join(s.dir, "xdg"))
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
		ts.Check(filepath.WalkDir(s.dir, func(p string, _ os.DirEntry, err error) error {
			return errors.Join(err, os.Lchown(p, int(user), int(user)))
		}))
	}
	return args[0], cmd
}

func start(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, 2)
	s := on(ts)
	name, cmd := program(ts, args)
	out, err := os.Create(ts.MkAbs(name + ".out"))
	ts.Check(err)
	defer out.Close()
	log, err := os.Create(ts.MkAbs(name + ".err"))
	ts.Check(err)
	defer log.Close()
	cmd.Stdout, cmd.Stderr = out, log
	ts.Check(cmd.Start())
	r := &run{cmd: cmd, log: log.Name(), done: make(chan struct{})}
	s.runs[name] = r
	go func() {
		_ = cmd.Wait() // the status says it
		r.status = statusOf(cmd)
		close(r.done)
	}()
	answers := regexp.MustCompile(`job started job=(\S+) .*http=(\S+)`)
	eventually(ts, func() error {
		said, err := os.ReadFile(r.log)
		ts.Check(err)
		if m := answers.FindSubmatch(said); m != nil {
			s.uid, s.url = string(m[1]), string(m[2])
			r.uid = s.uid
			return nil
		}
		select {
		case <-r.done:
			ts.Fatalf("%s ended with %d before it answered:\n%s", name, r.status, said)
		default:
		}
		return fmt.Errorf("%s does not say where it answers:\n%s", name, said)
	})
	ts.Setenv("URL", s.url)
	ts.Setenv("UID", s.uid)
	ts.Setenv("PID", strconv.Itoa(cmd.Process.Pid))
}

// statusOf is the exit status as a shell shows it.
func statusOf(cmd *exec.Cmd) int {
	if w, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return 128 + int(w.Signal())
	}
	return cmd.ProcessState.ExitCode()
}

func ended(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, 2)
	r := on(ts).runs[args[0]]
	limit := time.NewTimer(patience)
	defer limit.Stop()
	select {
	case <-r.done:
	case <-limit.C:
		ts.Fatalf("%s has not ended after %s:\n%s", args[0], patience, read(r.log))
	}
	if strconv.Itoa(r.status) != args[1] {
		ts.Fatalf("%s ended with %d, want %s:\n%s", args[0], r.status, args[1], read(r.log))
	}
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, 2)
	code, cmd := program(ts, args)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	ts.Check(cmd.Start())
	limit := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	_ = cmd.Wait() // the status says it
	limit.Stop()
	_, _ = ts.Stdout().Write(out.Bytes())
	_, _ = ts.Stderr().Write(said.Bytes())
	if got := statusOf(cmd); strconv.Itoa(got) != code {
		ts.Fatalf("it ended with %d, want %s:\n%s%s", got, code, &out, &said)
	}
}

func read(path string) string {
	src, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(src)
}

func logged(ts *testscript.TestScript, neg bool, args []string) {
	r := on(ts).runs[args[0]]
	look := func() error {
		rest := read(r.log)
		for _, pattern := range args[1:] {
			at := regexp.MustCompile("(?m)" + pattern).FindStringIndex(rest)
			if at == nil {
				return fmt.Errorf("%s does not say %q in its turn:\n%s", args[0], pattern, read(r.log))
			}
			rest = rest[at[1]:]
		}
		return nil
	}
	if neg {
		if look() == nil {
			ts.Fatalf("%s says it:\n%s", args[0], read(r.log))
		}
		return
	}
	eventually(ts, func() error {
		err := look()
		select {
		case <-r.done:
			if err != nil {
				ts.Fatalf("%v", look())
			}
		default:
		}
		return err
	})
}

func servicePID(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, 2)
	s := on(ts)
	name, index, _ := strings.Cut(args[1], "/")
	for _, p := range marked(s.uid) {
		if slices.Contains(p.values(), "VIGIL_OPT_ROLE="+name) && slices.Contains(p.values(), "VIGIL_OPT_INDEX="+index) {
			ts.Setenv(args[0], strconv.Itoa(p.pid))
			return
		}
	}
	ts.Fatalf("there is no service %s", args[1])
}

func signalTo(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, 2)
	for _, text := range args[1:] {
		pid, err := strconv.Atoi(text)
		ts.Check(err)
		if pid < 2 {
			ts.Fatalf("signal pid %d", pid)
		}
		ts.Check(unix.Kill(pid, unix.SignalNum("SIG"+args[0])))
	}
}

// again repeats a signal, since what follows the first one closely is taken for its echo.
func again(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, 1)
	pid, err := strconv.Atoi(ts.Getenv("PID"))
	ts.Check(err)
	limit, tick := time.NewTimer(patience), time.NewTicker(100*time.Millisecond)
	defer limit.Stop()
	defer tick.Stop()
	for _, r := range on(ts).runs {
		if r.cmd.Process.Pid != pid {
			continue
		}
		for {
			select {
			case <-r.done:
				return
			case <-tick.C:
				_ = r.cmd.Process.Signal(unix.SignalNum("SIG" + args[0])) // it may have ended
			case <-limit.C:
				ts.Fatalf("it has not ended:\n%s", read(r.log))
			}
		}
	}
}

func gone(ts *testscript.TestScript, neg bool, args []string) {
	look := func() error {
		for _, text := range args {
			pid, err := strconv.Atoi(strings.TrimSpace(text))
			ts.Check(err)
			if there(pid) {
				return fmt.Errorf("pid %d is there", pid)
			}
		}
		return nil
	}
	if neg {
		if look() == nil {
			ts.Fatalf("none of %v is there", args)
		}
		return
	}
	eventually(ts, look)
}

func insist(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, 2)
	pattern := regexp.MustCompile("(?m)" + args[0])
	eventually(ts, func() error {
		ts.Check(ts.Exec(args[1], args[2:]...))
		if !pattern.MatchString(ts.ReadFile("stdout")) {
			return fmt.Errorf("%s does not say %s", strings.Join(args[1:], " "), args[0])
		}
		return nil
	})
}
