package service

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vigil/api"
	"vigil/internal/job"
	"vigil/internal/proc"
	"vigil/internal/role"
	"vigil/internal/wire/rpc"
)

// patience is how long a test waits for what must come, also on a machine that is much too busy.
const patience = 3 * time.Minute

// stage is a hub with one real service process under it.
type stage struct {
	t       *testing.T
	uid     string // of its own, since marks and cgroup leaves bear it
	dir     string
	hub     *rpc.Hub
	door    *door
	ears    *ears
	id      rpc.ServiceID
	role    job.Role
	grace   time.Duration
	program string
	user    *syscall.Credential // nil: ours
	env     []string            // besides ours
	service *exec.Cmd
	said    said
	exited  chan int
}

// said is what the service has written on standard error.
type said struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(p)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

// workerOf is a role critic whose workers run this shell script. SELF is the test binary.
func workerOf(script string) job.Role {
	return job.Role{
		Name: "critic", Command: []string{"/bin/sh", "-c", script}, Workers: 2,
		Devices: job.DevicesAll, Distributed: job.Torch, Env: map[string]string{"SELF": os.Args[0]},
		Stop: job.StopPolicy{Signal: "TERM", Grace: 20 * time.Second, GraceOnFailure: 20 * time.Second},
	}
}

// newStage starts the hub. The service is started by enter.
func newStage(t *testing.T, r job.Role) *stage {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "v")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &stage{t: t, program: os.Args[0], uid: "tiny-" + randomName()[:8], dir: dir, role: r, id: rpc.ServiceID{Role: r.Name}, ears: &ears{changed: make(chan struct{})}, exited: make(chan int, 1)}
	s.hub = rpc.NewHub(rpc.HubOptions{JobUID: s.uid, Token: "secret", Epoch: 1, Ears: s.ears, PollEvery: 500 * time.Millisecond})
	l, err := proc.ListenUnix(filepath.Join(dir, "hub.sock"))
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := s.hub.Serve(l); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		s.hub.Stop(ctx)
		<-served
	})
	s.door = openDoor(t, filepath.Join(dir, "c.sock"), filepath.Join(dir, "hub.sock"))
	return s
}

// start starts the service process without waiting for it to be known.
func (s *stage) start() {
	s.t.Helper()
	config, err := json.Marshal(s.role)
	if err != nil {
		s.t.Fatal(err)
	}
	path := filepath.Join(s.dir, "role.json")
	if err := os.WriteFile(path, config, 0o644); err != nil {
		s.t.Fatal(err)
	}
	s.service = exec.Command(s.program, "--job-uid="+s.uid, "--job-name=tiny", "--role="+string(s.role.Name), "--node=here",
		"--runtime-dir="+s.runtimeDir(), "--log-dir="+s.logDir(), "--incident-dir="+s.incidentDir(), "--role-config="+path, "--controller-grace="+s.grace.String())
	// A race-detecting program would wait for a second before it ends.
	s.service.Env = append(os.Environ(), playAs+"=service", "GORACE=atexit_sleep_ms=0 "+os.Getenv("GORACE"), "VIGIL_OPT_TOKEN=secret", "VIGIL_OPT_CONTROLLER=unix://"+s.door.path)
	s.service.Env = append(s.service.Env, s.env...)
	s.service.Stderr = &s.said
	s.service.SysProcAttr = &syscall.SysProcAttr{Credential: s.user}
	if err := s.service.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() {
		s.service.Wait()
		s.exited <- s.service.ProcessState.ExitCode()
		close(s.exited)
	}()
	s.t.Cleanup(func() {
		s.service.Process.Signal(unix.SIGTERM)
		select {
		case <-s.exited:
		case <-time.After(patience):
			s.service.Process.Kill()
			<-s.exited
			s.t.Error("the service did not end in order")
		}
		if s.t.Failed() {
			s.t.Logf("the service said:\n%s", s.said.String())
		}
	})
}

// asNobody has the service run as an ordinary user, who can reach what it needs.
func (s *stage) asNobody() {
	s.t.Helper()
	src, err := os.ReadFile(os.Args[0])
	if err != nil {
		s.t.Fatal(err)
	}
	s.program = filepath.Join(s.dir, "program")
	s.user = &syscall.Credential{Uid: 65534, Gid: 65534}
	if err := errors.Join(os.WriteFile(s.program, src, 0o755), os.Chmod(s.dir, 0o777), os.Chmod(s.door.path, 0o777)); err != nil {
		s.t.Fatal(err)
	}
}

// enter starts the service and waits until it has joined.
func enter(t *testing.T, r job.Role) *stage {
	t.Helper()
	s := newStage(t, r)
	s.start()
	s.joined()
	return s
}

func (s *stage) joined() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := s.hub.WaitJoined(ctx, s.id, s.service.Process.Pid); err != nil {
		s.t.Fatal(err)
	}
}

func (s *stage) runtimeDir() string { return filepath.Join(s.dir, "run") }
func (s *stage) logDir() string     { return filepath.Join(s.dir, "logs") }
func (s *stage) incidentDir() string {
	return filepath.Join(s.dir, "incidents")
}

// log returns what a worker life has written.
func (s *stage) log(inc, rank int, name string) string {
	s.t.Helper()
	return s.logOf(fmt.Sprintf("%d.1", rank), inc, name)
}

// logOf is log of any attempt: its folder is RANK.ATTEMPT.
func (s *stage) logOf(folder string, inc int, name string) string {
	s.t.Helper()
	text, err := os.ReadFile(filepath.Join(s.logDir(), "critic", fmt.Sprint(inc), folder, name+".log"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		s.t.Fatal(err)
	}
	return string(text)
}

// awaitLog waits until a worker life has written ok text on standard output.
func (s *stage) awaitLog(inc, rank int, want string) {
	s.t.Helper()
	eventually(s.t, fmt.Sprintf("rank %d of incarnation %d to write %q", rank, inc, want), func() bool {
		return bytes.Contains([]byte(s.log(inc, rank, "stdout")), []byte(want))
	})
}

func (s *stage) call(order *api.ToService) (*api.Answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return s.hub.Call(ctx, s.id, order)
}

func (s *stage) must(order *api.ToService) *api.Answer {
	s.t.Helper()
	answer, err := s.call(order)
	if err != nil {
		s.t.Fatal(err)
	}
	return answer
}

// life is a worker life of its role's first attempt.
func (s *stage) life(inc, rank int) role.Life {
	return role.Life{Job: s.uid, Role: s.role.Name, Incarnation: inc, Rank: rank, Attempt: 1}
}

// runOrder starts two ranks, resuming at 40.
func runOrder(inc int) *api.Run {
	return &api.Run{
		Incarnation: uint64(inc), ResumeStep: 40, WorldSize: 2, GroupWorldSize: 1, MasterAddr: "127.0.0.1", MasterPort: 29999,
		Workers: []*api.Worker{{Rank: 0, Attempt: 1}, {Rank: 1, Attempt: 1}},
	}
}

func run(inc int) *api.ToService {
	return &api.ToService{Order: &api.ToService_Run{Run: runOrder(inc)}}
}

func stop(s *api.Stop) *api.ToService { return &api.ToService{Order: &api.ToService_Stop{Stop: s}} }

func getStep() *api.ToService {
	return &api.ToService{Order: &api.ToService_GetStep{GetStep: &api.GetStep{}}}
}

func setStep(n int64) *api.ToService {
	return &api.ToService{Order: &api.ToService_SetStep{SetStep: &api.SetStep{Step: n}}}
}

// awaitExit returns the service's exit code.
func (s *stage) awaitExit() int {
	s.t.Helper()
	select {
	case code := <-s.exited:
		return code
	case <-time.After(patience):
		s.t.Fatalf("the service has not ended after %s", patience)
		return 0
	}
}

// gone fails the test if a process is still there; a zombie is.
func gone(t *testing.T, pids ...int) {
	t.Helper()
	for _, pid := range pids {
		if err := unix.Kill(pid, 0); !errors.Is(err, unix.ESRCH) {
			t.Errorf("pid %d is still there (%v)", pid, err)
		}
	}
}

// eventually polls for what no channel tells.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("waited %s for %s", patience, what)
		}
	}
}

func atoi(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// slow skips a test that takes real time where only the quick ones are wanted (go test -short).
func slow(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("it takes real time: not with -short")
	}
}
