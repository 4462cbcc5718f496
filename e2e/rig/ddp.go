package rig

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
)

// Torch returns an interpreter that has PyTorch; empty where there is none.
var Torch = sync.OnceValue(func() string {
	for _, name := range []string{os.Getenv("TORCH_PYTHON"), "python3", "/usr/bin/python3"} {
		path, err := exec.LookPath(name)
		if err == nil && exec.Command(path, "-c", "import torch.distributed.run").Run() == nil {
			return path
		}
	}
	return ""
})

// NeedTorch is Torch; it skips the test where there is none.
func NeedTorch(t *testing.T) string {
	t.Helper()
	if Torch() == "" {
		t.Skip("SKIPPED: no python3 here has PyTorch (Debian: apt-get install python3-torch; or set TORCH_PYTHON), so no real training was run")
	}
	return Torch()
}

// Loss is what rank 0 of the DDP example has said of a step.
type Loss struct {
	Step int
	Loss float64
}

// Losses reads what rank 0 has printed. A line that has no end was not finished and does not count.
func Losses(output string) []Loss {
	var all []Loss
	for text := range strings.Lines(output) {
		var l Loss
		if _, err := fmt.Sscanf(text, "step %d loss %f\n", &l.Step, &l.Loss); err == nil && strings.HasSuffix(text, "\n") {
			all = append(all, l)
		}
	}
	return all
}
