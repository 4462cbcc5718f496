package takeover

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// The programs under test.
var controller, worker string

// together is how many stories are told at once. They wait more than they work.
const together = "6"

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(tell(m))
}

// tell builds the programs where every user can run them, and runs the tests.
func tell(m *testing.M) int {
	bin, err := os.MkdirTemp("", "vigil-takeover-")
	if err == nil {
		defer os.RemoveAll(bin)
		controller, worker = filepath.Join(bin, "controller"), filepath.Join(bin, "worker")
		build := exec.Command("go", "build", "-o", bin+"/", "../../cmd/controller", "../worker")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		build.Stderr = os.Stderr
		if err = build.Run(); err == nil {
			err = os.Chmod(bin, 0o755)
		}
	}
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if err == nil && !given {
		err = flag.Set("test.parallel", together)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "build the programs:", err)
		return 1
	}
	return m.Run()
}
