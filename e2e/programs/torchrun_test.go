package programs

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"vigil/e2e/rig"
)

// found is what testdata/environ.py writes.
type found struct {
	Environ map[string]string
	Argv    []string
	Program string
	Folder  string
}

// differ are the variables whose values must differ between two launches, or that name files of one.
var differ = []string{"FOUND", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_USE_AGENT_STORE"}

// isOurs says whether vigil adds the variable to what torchrun gives.
func isOurs(name string) bool {
	return strings.HasPrefix(name, "VIGIL_") || strings.HasPrefix(name, "TORCH_NCCL_DEBUG_INFO_") ||
		slices.Contains([]string{"NOTIFY_SOCKET", "PYTHONUNBUFFERED", "PYTHONPATH", "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_DUMP_ON_TIMEOUT"}, name)
}

// renamed gives a variable its name in PyTorch 2.2 and newer.
func renamed(name string) string {
	if name == "NCCL_ASYNC_ERROR_HANDLING" {
		return "TORCH_NCCL_ASYNC_ERROR_HANDLING"
	}
	return name
}

// readFound reads what all ranks found: the keys are "rank N". Values that must differ are left out.
func readFound(t *testing.T, base string, workers int) map[string]found {
	t.Helper()
	all := map[string]found{}
	for rank := range workers {
		text, err := os.ReadFile(fmt.Sprintf("%s.%d", base, rank))
		if err != nil {
			t.Fatal(err)
		}
		var one found
		if err := json.Unmarshal(text, &one); err != nil {
			t.Fatal(err)
		}
		environ := map[string]string{}
		for name, value := range one.Environ {
			if slices.Contains(differ, name) {
				value = "(differs)"
			}
			environ[renamed(name)] = value
		}
		one.Environ = environ
		all[fmt.Sprintf("rank %d", rank)] = one
	}
	return all
}

// torchrun returns the command that starts the real one, with ranks on this machine only. Its
// --standalone is not used: in older versions that is one port for everybody.
func torchrun(t *testing.T) []string {
	t.Helper()
	flags := []string{"--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0"}
	if path := os.Getenv("TORCHRUN"); path != "" {
		return append([]string{path}, flags...)
	}
	shim, err := filepath.Abs("testdata/torchrun.py")
	if err != nil {
		t.Fatal(err)
	}
	return append([]string{rig.NeedTorch(t), shim}, flags...)
}

// shows: A15
func TestAScriptFindsWhatTorchrunWouldHaveGivenIt(t *testing.T) {
	t.Parallel()
	command, script := torchrun(t), "environ.py"
	workdir, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, workers := range []int{1, 2} {
		t.Run(fmt.Sprintf("workers %d", workers), func(t *testing.T) {
			t.Parallel()
			dir := rig.Folder(t)
			theirs, ours := filepath.Join(dir, "torchrun"), filepath.Join(dir, "vigil")
			flags := []string{fmt.Sprintf("--nproc_per_node=%d", workers), "--max_restarts=2"}
			args := []string{script, "--epochs", "3"}

			// torchrun calls its only role "default" unless told; ours is called main.
			cmd := exec.Command(command[0], slices.Concat(command[1:], flags, []string{"--role=main"}, args)...)
			cmd.Dir, cmd.Env = workdir, plain("FOUND="+theirs)
			if said, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %v\n%s", cmd.Args, err, said)
			}
			torch := readFound(t, theirs, workers)
			for rank := range torch { // newer ones leave to the ranks what is for themselves
				delete(torch[rank].Environ, "TORCHELASTIC_SIGNALS_TO_HANDLE")
			}
			r := begin(t, workdir, plain("FOUND="+ours), slices.Concat([]string{"run", "--python", torch["rank 0"].Program}, flags, args)...)
			r.End(0)
			vigil := readFound(t, ours, workers)
			for rank := range vigil {
				for _, name := range []string{"VIGIL_LIFE", "NOTIFY_SOCKET", "PYTHONUNBUFFERED"} {
					if vigil[rank].Environ[name] == "" {
						t.Errorf("%s has no %s", rank, name)
					}
				}
				maps.DeleteFunc(vigil[rank].Environ, func(name, _ string) bool { return isOurs(name) })
			}
			if diff := cmp.Diff(torch, vigil); diff != "" {
				t.Errorf("torchrun (-) and vigil (+) give different things:\n%s", diff)
			}
		})
	}
}
