package e2e

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// together is how many stories are told at once. They wait more than they work.
const together = "6"

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(tell(m))
}

// tell builds the programs, puts them first in PATH and runs the tests. Where there is no Go, as in a virtual
// machine, VIGIL_E2E_PROGRAMS names the folder that they are in.
func tell(m *testing.M) int {
	bin, err := os.Getenv("VIGIL_E2E_PROGRAMS"), error(nil)
	if bin == "" {
		bin, err = os.MkdirTemp("", "vigil-e2e-bin-")
		if err == nil {
			defer os.RemoveAll(bin)
			err = build(bin)
		}
	}
	if err == nil && isDefault("test.parallel") {
		err = flag.Set("test.parallel", together)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	os.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	return m.Run()
}

// build makes the programs under test, and the worker; with the race detector where the tests have it.
// Another user must be able to run them.
func build(bin string) error {
	args, cgo := []string{"build"}, "CGO_ENABLED=0"
	if underRace {
		args, cgo = append(args, "-race"), "CGO_ENABLED=1"
	}
	cmd := exec.Command("go", append(args, "-o", bin+"/", "./cmd/controller", "./cmd/service", "./e2e/worker")...)
	cmd.Dir = ".."
	cmd.Env = append(os.Environ(), cgo, "GOFLAGS=")
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the programs: %w\n%s", err, said)
	}
	if err := os.Symlink("controller", filepath.Join(bin, "vigil")); err != nil {
		return err
	}
	return os.Chmod(bin, 0o755)
}

func isDefault(name string) bool {
	set := false
	flag.Visit(func(f *flag.Flag) { set = set || f.Name == name })
	return !set
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                "testdata/script",
		Setup:              setup,
		Cmds:               commands,
		Condition:          condition,
		RequireUniqueNames: true,
	})
}

// setup gives a script a short folder of its own in $R, for sockets and for what another user must be
// able to read, and ends what it leaves behind.
func setup(env *testscript.Env) error {
	r, err := os.MkdirTemp("/tmp", "ve-")
	if err != nil {
		return err
	}
	if err := os.Chmod(r, 0o755); err != nil {
		return err
	}
	s := &stage{dir: r, runs: map[string]*run{}}
	env.Values[stageKey{}] = s
	env.Defer(func() { // what a script that failed has left frozen can be ended by nobody
		frozen, _ := os.ReadFile(filepath.Join(env.WorkDir, "frozen"))
		_ = os.WriteFile(filepath.Join("/sys/fs/cgroup/freezer", "vigil-test-"+strings.TrimSpace(string(frozen)), "freezer.state"), []byte("THAWED"), 0)
	})
	env.Defer(func() {
		if races := s.close(); races != "" {
			env.T().Fatal(races)
		}
	})
	env.Setenv("GORACE", "log_path="+filepath.Join(r, "race"))
	env.Setenv("R", r)
	env.Setenv("XDG_STATE_HOME", filepath.Join(env.WorkDir, "xdg"))
	env.Setenv("VIGIL_OPT_RUNTIME_DIR", filepath.Join(r, "run"))
	env.Setenv("VIGIL_OPT_HTTP", "127.0.0.1:0")
	library, err := filepath.Abs("../python/src")
	if err != nil {
		return err
	}
	env.Setenv("LIBRARY", library)
	env.Setenv("FRAMEWORKS", frameworks())
	env.Setenv("AGENTS", os.Getenv(agentsFolder))
	for _, pair := range env.Vars {
		name, _, _ := strings.Cut(pair, "=")
		s.inherited = append(s.inherited, name)
	}
	return nil
}

// agentsFolder names the folder of a Python, and of what was installed with it, that has tracing agents and coverage.
const agentsFolder = "VIGIL_TEST_AGENTS"

// frameworks is a Python that may have transformers and Lightning: the one that the environment names.
func frameworks() string {
	if named := os.Getenv("VIGIL_TEST_PYTHON"); named != "" {
		return named
	}
	return "/usr/bin/python3"
}

func imports(python, modules string) bool {
	return exec.Command(python, "-c", "import "+modules).Run() == nil
}

func condition(name string) (bool, error) {
	switch name {
	case "root":
		return os.Geteuid() == 0, nil
	case "memcg":
		return memoryCgroups(), nil
	case "cgroups":
		return cgroupsWritable(), nil
	case "freezer":
		probe := filepath.Join("/sys/fs/cgroup/freezer", fmt.Sprintf("vigil-probe-%d", os.Getpid()))
		err := os.Mkdir(probe, 0o755)
		return os.Geteuid() == 0 && err == nil && os.Remove(probe) == nil, nil
	case "ipv6": // on loopback
		l, err := net.Listen("tcp6", "[::1]:0")
		if err == nil {
			l.Close()
		}
		return err == nil, nil
	case "mounts": // in a mount namespace of its own
		return exec.Command("unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt").Run() == nil, nil
	case "netns": // one with an IPv6 loopback can be made
		return exec.Command("unshare", "-n", "sh", "-ec", "ip link set lo up; ip addr show dev lo | grep -q ::1").Run() == nil, nil
	case "agents":
		return os.Getenv(agentsFolder) != "", nil
	case "torch": // Debian's, python3-torch
		return imports("/usr/bin/python3", "torch"), nil
	case "transformers":
		return imports(frameworks(), "transformers, accelerate, torch"), nil
	case "lightning":
		return imports(frameworks(), "pytorch_lightning"), nil
	}
	return false, errors.New("unknown condition")
}
