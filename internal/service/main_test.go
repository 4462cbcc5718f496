package service

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"vigil/internal/wire/notify"
)

// playAs is the environment variable that makes the test binary another program.
const playAs = "VIGIL_TEST_AS"

func TestMain(m *testing.M) {
	play := os.Getenv(playAs)
	os.Unsetenv(playAs) // the programs that it starts choose their own
	switch play {
	case "":
		os.Exit(m.Run())
	case "service":
		os.Exit(Main(os.Args[1:], os.Stderr))
	case "say":
		os.Exit(playSayer(os.Args[1:]))
	case "listen":
		os.Exit(playListener())
	case "share":
		os.Exit(playSharer(os.Args[1:]))
	}
	fmt.Fprintln(os.Stderr, "no such part:", play)
	os.Exit(99)
}

// playSayer is a worker that says each argument on its notify socket, in the order given; "until:FILE" waits for a file
// there, "exit:N" ends it. Without that it waits to be stopped.
func playSayer(args []string) int {
	term := make(chan os.Signal, 1)
	signal.Notify(term, unix.SIGTERM)
	conn, err := net.Dial("unixgram", os.Getenv("NOTIFY_SOCKET"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 98
	}
	for _, arg := range args {
		var code int
		if n, _ := fmt.Sscanf(arg, "exit:%d", &code); n == 1 {
			return code
		}
		if file, ok := strings.CutPrefix(arg, "until:"); ok {
			for {
				if _, err := os.Stat(file); err == nil {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
			continue
		}
		if _, err := conn.Write([]byte(arg)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 97
		}
	}
	<-term
	return 0
}

// playListener is a worker that counts its steps, binds its inbox and does what it is told there: it
// goes on from the step that it is set to, and ends at STOP=1. It says its step when asked by SIGUSR1.
func playListener() int {
	inbox, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: os.Getenv("VIGIL_INBOX"), Net: "unixgram"})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 98
	}
	usr1 := make(chan os.Signal, 1)
	signal.Notify(usr1, unix.SIGUSR1)
	signal.Ignore(unix.SIGTERM) // only STOP=1 ends it in order
	say := func(words string) {
		if err := notify.Send(os.Getenv("NOTIFY_SOCKET"), words); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	step := int64(100)
	say(fmt.Sprintf("X_VIGIL_STEP=%d\nREADY=1", step))
	orders := make(chan string)
	go func() {
		buf := make([]byte, 1024)
		for {
			n, err := inbox.Read(buf)
			if err != nil {
				return
			}
			orders <- string(buf[:n])
		}
	}()
	for {
		select {
		case <-usr1:
			step++
			say(fmt.Sprintf("X_VIGIL_STEP=%d", step))
		case order := <-orders:
			var seq int64
			switch n, _ := fmt.Sscanf(order, "SET_STEP=%d SEQ=%d", &step, &seq); {
			case n == 2:
				say(fmt.Sprintf("X_VIGIL_ACK=%d", seq))
			case order == notify.Stop:
				fmt.Println("stopped by word")
				return 0
			}
		case <-time.After(time.Minute):
			return 96
		}
	}
}

func lookupIn(m map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := m[name]; return v, ok }
}

func TestFlagsAreReadFromTheCommandLineThenFromTheEnvironment(t *testing.T) {
	v := &flagValues{}
	fs := pflag.NewFlagSet("service", pflag.ContinueOnError)
	addFlags(fs, v)
	if err := fs.Parse([]string{"--index=3"}); err != nil {
		t.Fatal(err)
	}
	environ := map[string]string{
		"VIGIL_OPT_INDEX": "7", "VIGIL_OPT_CONTROLLER_GRACE": "90s", "VIGIL_OPT_ROLE": "critic",
		"VIGIL_OPT_CONTROLLER": "unix:///run/vigil/c.sock", "VIGIL_OPT_TOKEN": "secret",
	}
	if err := fromEnvironment(fs, v, lookupIn(environ)); err != nil {
		t.Fatal(err)
	}
	if v.Index != 3 || v.ControllerGrace != 90*time.Second || v.role != "critic" {
		t.Errorf("index %d, grace %s, role %q; want 3, 1m30s, critic", v.Index, v.ControllerGrace, v.role)
	}
	if v.Controller != "unix:///run/vigil/c.sock" || v.Token != "secret" {
		t.Errorf("controller %q, token %q", v.Controller, v.Token)
	}
	environ["VIGIL_OPT_EPOCH"] = "soon"
	if err := fromEnvironment(fs, v, lookupIn(environ)); err == nil || !strings.Contains(err.Error(), "VIGIL_OPT_EPOCH") {
		t.Errorf("a bad value in the environment: %v", err)
	}
}

// shows: D24
func TestAddressAndTokenCannotBeGivenOnTheCommandLine(t *testing.T) {
	for _, args := range [][]string{{"--token=secret"}, {"--controller=unix:///x"}} {
		var said strings.Builder
		if code := Main(args, &said); code != ExitUsage || !strings.Contains(said.String(), "unknown flag") {
			t.Errorf("%v: exit %d, %q; want exit 2", args, code, said.String())
		}
	}
}

func TestBadFlagsAreSaidOneByOneAndExitWithTwo(t *testing.T) {
	tests := []struct {
		name string
		args []string
		want []string
	}{
		{"everything missing", nil, []string{"--role:", "VIGIL_OPT_CONTROLLER", "--job-uid", "--log-dir", "--role-config"}},
		{"values that cannot be meant", []string{"--index=-1", "--incarnation=0", "--controller-grace=-1s", "--log-level=loud", "--http=0.0.0.0:0"},
			[]string{"--index -1", "--incarnation 0", "--controller-grace -1s", `"loud"`, "loopback"}},
		{"an argument", []string{"critic"}, []string{`"critic"`}},
		{"no number", []string{"--index=many"}, []string{"--index"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var said strings.Builder
			if code := Main(tt.args, &said); code != ExitUsage {
				t.Errorf("exit %d, want 2", code)
			}
			for _, want := range tt.want {
				if !strings.Contains(said.String(), want) {
					t.Errorf("%q does not say %q", said.String(), want)
				}
			}
		})
	}
}

func TestTheExitCodeSaysWhatBecameOfTheService(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want int
	}{{nil, 0}, {errors.New("x"), 1}, {&UsageError{errors.New("x")}, 2}} {
		if got := Status(tt.err); got != tt.want {
			t.Errorf("status of %v is %d, want %d", tt.err, got, tt.want)
		}
	}
}
