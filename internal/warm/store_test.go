package warm

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
)

// In place of PyTorch: a store that asks once and says what it found.
const rendezvous = `
import socket
def _create_c10d_store(hostname, port, rank, world_size, timeout=None):
    try:
        socket.create_connection((hostname, port), 1).close()
        print("rank", rank, "connected", world_size)
    except OSError:
        print("rank", rank, "found nobody", world_size)
`

// PyTorch's client sleeps when it comes before the store: a rank other than 0 comes after it.
func TestARankWaitsUntilTheStoreListens(t *testing.T) {
	b := newBench(t, Options{Preload: []string{"torch.distributed.rendezvous"}})
	for _, folder := range []string{"torch", "torch/distributed"} {
		if err := os.Mkdir(b.dir+"/"+folder, 0o755); err != nil {
			t.Fatal(err)
		}
		b.file(folder+"/__init__.py", "")
	}
	b.file("torch/distributed/rendezvous.py", rendezvous)
	b.file("train.py", "import os, sys\nfrom torch.distributed import rendezvous\nprint('asks', flush=True)\nrendezvous._create_c10d_store(sys.argv[1], int(sys.argv[2]), int(os.environ['RANK']), 2)\n")
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := free.Addr().(*net.TCPAddr).Port
	free.Close()
	start := func(rank int) *run {
		s := b.spec("train.py", "127.0.0.1", fmt.Sprint(port))
		s.Env = append(s.Env, "vigil") // no variable: ignored
		for i, pair := range s.Env {
			if strings.HasPrefix(pair, "RANK=") {
				s.Env[i] = fmt.Sprintf("RANK=%d", rank)
			}
		}
		return b.fork(s)
	}
	second := start(1)
	if out, _ := start(0).end(t); out != "asks\nrank 0 found nobody 2\n" {
		t.Errorf("rank 0 said %q", out)
	}
	select {
	case <-second.Done():
		t.Errorf("rank 1 did not wait: %v", second.Exit())
	default:
	}
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if out, _ := second.end(t); out != "asks\nrank 1 connected 2\n" {
		t.Errorf("rank 1 said %q", out)
	}
}
