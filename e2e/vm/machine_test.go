package vm

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	// patience is how long anything may take in a machine that is emulated on a busy host.
	patience = 15 * time.Minute
	// quickStart is within what a machine with hardware support has started, even on a busy host.
	quickStart = 2 * time.Minute
)

// machine is a virtual one with a disk of its own. Its methods fail the test that made it.
type machine struct {
	t     *testing.T
	dir   string // of its disks, its port and its console
	accel string // of qemu; empty: not known yet
	boots int

	cmd   *exec.Cmd
	ended chan struct{}
	port  net.Conn
	lines chan string // of the guest; closed at the port's end
}

// newMachine makes the disks: a copy of the image, and one with what the guest runs.
func newMachine(t *testing.T) *machine {
	t.Helper()
	dir, err := os.MkdirTemp("", "vv-") // short, for the port's socket
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, dir: dir, accel: os.Getenv("VIGIL_VM_ACCEL")}
	t.Cleanup(func() {
		m.cut()
		if t.Failed() {
			t.Logf("the console said at last:\n%s", m.console())
		}
		_ = os.RemoveAll(dir)
	})
	tests := filepath.Join(dir, "tests")
	for _, folder := range []string{"bin", "e2e/testdata", "python/src"} {
		if err := os.MkdirAll(filepath.Join(tests, folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	m.host("go", "test", "-c", "-o", filepath.Join(tests, "vm.test"), ".")
	m.host("go", "test", "-c", "-o", filepath.Join(tests, "e2e", "e2e.test"), "..")
	m.host("go", "build", "-o", filepath.Join(tests, "bin")+"/", "../../cmd/controller", "../../cmd/service", "../worker")
	m.host("ln", "-s", "controller", filepath.Join(tests, "bin", "vigil"))
	m.host("cp", "-r", "../testdata/script", filepath.Join(tests, "e2e", "testdata"))
	m.host("cp", "-r", "../../deploy", "testdata/agent", "testdata/strangers", "testdata/strangers.service", tests)
	m.host("chmod", "-R", "a+rX", tests)
	m.host("mke2fs", "-q", "-t", "ext4", "-L", "tests", "-d", tests, filepath.Join(dir, "tests.img"), "400M")
	m.host("cp", "--sparse=always", filepath.Join(image, "root.img"), filepath.Join(dir, "root.img"))
	return m
}

// host runs a program on this side.
func (m *machine) host(name string, args ...string) {
	m.t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		m.t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
}

// boot starts the machine and waits for the word of its agent. It returns the boot's id.
func (m *machine) boot() string {
	m.t.Helper()
	began := time.Now()
	if m.accel == "" {
		if kvm, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0); err == nil {
			kvm.Close()
			if id, err := m.try("kvm", quickStart); err == nil {
				m.accel = "kvm"
				m.t.Logf("boot %d took %s with kvm", m.boots, time.Since(began).Round(time.Second))
				return id
			}
			m.cut()
			m.t.Logf("the machine does not start with kvm: it is emulated, which is slow")
		}
		m.accel = "tcg"
	}
	id, err := m.try(m.accel, patience)
	if err != nil {
		m.t.Fatalf("the machine does not start: %v", err)
	}
	m.t.Logf("boot %d took %s with %s", m.boots, time.Since(began).Round(time.Second), m.accel)
	return id
}

// try starts the machine and waits for its agent.
func (m *machine) try(accel string, within time.Duration) (boot string, err error) {
	m.boots++
	path := filepath.Join(m.dir, "port")
	_ = os.Remove(path)
	l, err := net.Listen("unix", path)
	if err != nil {
		return "", err
	}
	defer l.Close()
	cpu := map[string]string{"kvm": "host", "tcg": "Nehalem"}[accel] // wide vectors are slow where they are emulated
	m.cmd = exec.Command("qemu-system-x86_64", "-accel", accel, "-cpu", cpu, "-smp", "1", "-m", "1280",
		"-nodefaults", "-no-reboot", "-display", "none", "-nic", "none", "-device", "virtio-rng-pci",
		"-kernel", filepath.Join(image, "vmlinuz"), "-initrd", filepath.Join(image, "initrd.img"),
		"-append", "root=LABEL=root rw console=ttyS0 quiet panic=-1 mitigations=off no_timer_check systemd.show_status=no systemd.default_timeout_start_sec=1800",
		"-drive", "if=virtio,format=raw,file="+filepath.Join(m.dir, "root.img"),
		"-drive", "if=virtio,format=raw,readonly=on,file="+filepath.Join(m.dir, "tests.img"),
		"-chardev", "socket,id=port,path="+path, "-device", "virtio-serial-pci", "-device", "virtserialport,chardev=port,name=vigil",
		"-serial", "file:"+filepath.Join(m.dir, "console"))
	said := new(strings.Builder)
	m.cmd.Stdout, m.cmd.Stderr = said, said
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := m.cmd.Start(); err != nil {
		return "", err
	}
	ended := make(chan struct{})
	m.ended = ended
	go func() { _ = m.cmd.Wait(); close(ended); l.Close() }()
	if m.port, err = l.Accept(); err != nil {
		return "", fmt.Errorf("qemu has ended: %s", said)
	}
	m.lines = make(chan string)
	go read(m.port, m.lines)
	over := time.NewTimer(within)
	defer over.Stop()
	for {
		select {
		case line, more := <-m.lines:
			if id, ok := strings.CutPrefix(line, "@hello "); ok {
				return id, nil
			}
			if !more {
				return "", fmt.Errorf("qemu has ended: %s", m.console())
			}
		case <-over.C:
			return "", fmt.Errorf("its agent has said nothing for %s", within)
		}
	}
}

// read hands on what the guest says, until the port's end.
func read(port net.Conn, lines chan<- string) {
	defer close(lines)
	all := bufio.NewReader(port)
	for {
		line, err := all.ReadString('\n')
		if err != nil {
			return
		}
		lines <- strings.TrimRight(line, "\r\n")
	}
}

// console is the end of what kernel and systemd have printed.
func (m *machine) console() string {
	text, _ := os.ReadFile(filepath.Join(m.dir, "console")) // not there if qemu never ran
	lines := strings.Split(string(text), "\n")
	return strings.Join(lines[max(0, len(lines)-60):], "\n")
}

// cut takes the power away: nothing that the guest has not written to its disk is there afterwards.
func (m *machine) cut() {
	if m.cmd == nil || m.cmd.Process == nil {
		return
	}
	_ = m.cmd.Process.Kill()
	<-m.ended
	if m.port != nil {
		m.port.Close()
		for range m.lines { //nolint:revive // what was said is of no use any more
		}
	}
	m.cmd, m.port = nil, nil
}

// tell asks the guest for something.
func (m *machine) tell(words string) {
	m.t.Helper()
	if _, err := fmt.Fprintln(m.port, words); err != nil {
		m.t.Fatal(err)
	}
}

// hear hands each line that the guest says to what, until that is content or the test has ended; then its exit status
// is returned, and what it has said.
func (m *machine) hear(content func(line string) bool) (status int, said string) {
	m.t.Helper()
	log, err := os.OpenFile(filepath.Join(m.dir, "said"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600) // for who looks meanwhile
	if err != nil {
		m.t.Fatal(err)
	}
	defer log.Close()
	over := time.NewTimer(patience)
	defer over.Stop()
	var all []string
	for {
		select {
		case line, more := <-m.lines:
			if !more {
				m.t.Fatalf("the machine has ended:\n%s", strings.Join(all, "\n"))
			}
			if code, ok := strings.CutPrefix(line, "@exit "); ok {
				status, err := strconv.Atoi(code)
				if err != nil {
					m.t.Fatal(err)
				}
				return status, strings.Join(all, "\n")
			}
			all = append(all, line)
			_, _ = fmt.Fprintln(log, line)
			if content != nil && content(line) {
				return 0, strings.Join(all, "\n")
			}
			over.Reset(patience)
		case <-over.C:
			m.t.Fatalf("the guest has said nothing for %s:\n%s", patience, strings.Join(all, "\n"))
		}
	}
}

// ask runs a test of the guest's half, or scripts, to its end, which must be a good one.
func (m *machine) ask(words string) {
	m.t.Helper()
	began := time.Now()
	m.tell(words)
	status, said := m.hear(nil)
	if status != 0 || strings.Contains(said, "no tests to run") {
		m.t.Errorf("%s: exit %d:\n%s", words, status, said)
		return
	}
	if skipped := skips(said); skipped != "" {
		m.t.Logf("skipped in the guest:\n%s", skipped)
	}
	m.t.Logf("%s took %s", words, time.Since(began).Round(time.Second))
}

// skips returns the lines that tell what was not run.
func skips(said string) string {
	var all []string
	for line := range strings.Lines(said) {
		if strings.Contains(line, "SKIP") {
			all = append(all, line)
		}
	}
	return strings.Join(all, "")
}

// reboot is an orderly one: systemd ends everything and syncs. The next boot's id is returned.
func (m *machine) reboot() string {
	m.t.Helper()
	m.tell("reboot")
	over := time.NewTimer(patience)
	defer over.Stop()
	for lines := m.lines; ; {
		select {
		case _, more := <-lines:
			if !more {
				lines = nil
			}
		case <-m.ended:
			if err := m.cmd.ProcessState; !err.Success() {
				m.t.Fatal(errors.New(err.String()))
			}
			m.cut()
			return m.boot()
		case <-over.C:
			m.t.Fatalf("the machine has not gone down within %s", patience)
		}
	}
}
