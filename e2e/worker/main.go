// Program worker is a training process that does what its arguments say, one after the other. It
// speaks the notify protocol by itself, as a program of somebody else would.
//
// A word is VERB or VERB=VALUE; $NAME in a value is taken from the environment. Guards may stand
// before it: "rank1:exit=3" is for rank 1 only, "life1:" for the first incarnation only, and both may
// be joined. After the last word the worker waits to be stopped.
package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// beatEvery is how long a step takes.
const beatEvery = 50 * time.Millisecond

var verbs = map[string]func(value string) error{
	"print":    func(text string) error { return line(os.Stdout, text) },
	"complain": func(text string) error { return line(os.Stderr, text) },
	"mumble":   func(text string) error { _, err := io.WriteString(os.Stderr, text); return err },
	"env":      writeEnviron,
	"note":     note,
	"say":      say,
	"ready":    func(string) error { return say("READY=1") },
	"step":     func(n string) error { return say("X_VIGIL_STEP=" + n) },
	"beat":     func(string) error { return beat(-1) },
	"alive":    func(string) error { return repeat("WATCHDOG=1") },
	"beats":    func(n string) error { return withNumber(n, beat) },
	"deaf":     func(string) error { signal.Ignore(syscall.SIGTERM, syscall.SIGINT); return nil },
	"orderly":  orderly,
	"saves":    saves,
	"await":    await,
	"exit":     func(n string) error { return withNumber(n, func(code int) error { os.Exit(code); return nil }) },
	"die":      die,
	"listen":   listen,
	"report":   func(text string) error { return post("/report_error", text) },
	"tell":     func(path string) error { return post(path, "") },
	"door":     door,
	"fetch":    fetch,
	"try":      try,
	"escape":   escape,
	"shm":      share,
	"wait":     func(string) error { wait(); return nil },
}

func main() {
	for _, word := range os.Args[1:] {
		if err := do(word); err != nil {
			fmt.Fprintf(os.Stderr, "worker: %s: %v\n", word, err)
			os.Exit(70)
		}
	}
	wait()
}

// repeat says the same for ever.
func repeat(words string) error {
	for range time.Tick(beatEvery) {
		if err := say(words); err != nil {
			return err
		}
	}
	return nil
}

// wait never returns. With no other goroutine, select{} would be taken for a deadlock.
func wait() { <-time.NewTimer(1 << 62).C }

// do carries out one word, unless a guard before it keeps it from that.
func do(word string) error {
	for _, guard := range []struct{ prefix, name string }{{"life", "VIGIL_INCARNATION"}, {"rank", "VIGIL_RANK"}} {
		if rest, ok := strings.CutPrefix(word, guard.prefix); ok {
			if n, after, ok := strings.Cut(rest, ":"); ok {
				if n != os.Getenv(guard.name) {
					return nil
				}
				word = after
			}
		}
	}
	verb, value, _ := strings.Cut(word, "=")
	act, ok := verbs[verb]
	if !ok {
		return fmt.Errorf("no such verb")
	}
	return act(os.ExpandEnv(value))
}

func withNumber(text string, act func(int) error) error {
	n, err := strconv.Atoi(text)
	if err != nil {
		return err
	}
	return act(n)
}

func line(w io.Writer, text string) error {
	_, err := fmt.Fprintln(w, text)
	return err
}

// writeEnviron leaves what this worker was given in FILE.ROLE.INCARNATION.RANK, sorted.
func writeEnviron(file string) error {
	all := os.Environ()
	slices.Sort(all)
	name := fmt.Sprintf("%s.%s.%s.%s", file, os.Getenv("VIGIL_ROLE"), os.Getenv("VIGIL_INCARNATION"), os.Getenv("VIGIL_RANK"))
	return replace(name, strings.Join(all, "\n")+"\n")
}

// replace writes a file so that a reader sees all of it or nothing.
func replace(name, content string) error {
	if err := os.WriteFile(name+".new", []byte(content), 0o644); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}

// note appends a line to a file: FILE TEXT.
func note(value string) error {
	file, text, _ := strings.Cut(value, " ")
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	return line(f, text)
}

// say sends one datagram (sd_notify(3)).
func say(text string) error {
	c, err := net.Dial("unixgram", os.Getenv("NOTIFY_SOCKET"))
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Write([]byte(text))
	return err
}

// resumed is the step that this life began with, or has reached.
var resumed, _ = strconv.ParseInt(os.Getenv("VIGIL_RESUME_STEP"), 10, 64)

// beat makes n steps, without end for a negative n, from where this life stands, and takes a step that
// it is told.
func beat(n int) error {
	told, err := inbox()
	if err != nil {
		return err
	}
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	for n != 0 {
		select {
		case o := <-told:
			resumed = o.step
			if err := say("X_VIGIL_ACK=" + o.seq); err != nil {
				return err
			}
		case <-tick.C:
			resumed++
			n--
			if err := say("X_VIGIL_STEP=" + strconv.FormatInt(resumed, 10)); err != nil {
				return err
			}
		}
	}
	return nil
}

// order is a step that the service tells a worker to go on from.
type order struct {
	step int64
	seq  string
}

// inbox listens for orders, once per process.
var inbox = sync.OnceValues(func() (<-chan order, error) {
	c, err := net.ListenPacket("unixgram", os.Getenv("VIGIL_INBOX"))
	if err != nil {
		return nil, err
	}
	told := make(chan order)
	go func() {
		buf := make([]byte, 4096)
		for {
			n, _, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			var o order
			for _, word := range strings.Fields(string(buf[:n])) {
				switch key, value, _ := strings.Cut(word, "="); key {
				case "SET_STEP":
					o.step, _ = strconv.ParseInt(value, 10, 64)
				case "SEQ":
					o.seq = value
				}
			}
			if o.seq != "" {
				told <- o
			}
		}
	}()
	return told, nil
})

// orderly ends well when asked to, after writing "bye".
func orderly(string) error {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGTERM)
	go func() {
		<-asked
		fmt.Println("bye")
		os.Exit(0)
	}()
	return nil
}

// saves has the worker, once it is told to stop, work for that long, leave a file saved.ROLE.RANK, and end with 0.
func saves(d string) error {
	takes, err := time.ParseDuration(d)
	if err != nil {
		return err
	}
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGTERM)
	go func() {
		<-asked
		<-time.NewTimer(takes).C
		if os.WriteFile("saved."+os.Getenv("VIGIL_ROLE")+"."+os.Getenv("VIGIL_RANK"), nil, 0o600) != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}()
	return nil
}

// await waits until a file is there.
func await(file string) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for range tick.C {
		if found, _ := filepath.Glob(file); len(found) > 0 {
			return nil
		}
	}
	return nil
}

// share makes a file of shared memory, maps it, and leaves its name in a file.
func share(name string) error {
	f, err := os.CreateTemp("/dev/shm", "psm_")
	if err != nil {
		return err
	}
	if err := f.Truncate(4096); err != nil {
		return err
	}
	if _, err := syscall.Mmap(int(f.Fd()), 0, 4096, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED); err != nil {
		return err
	}
	return replace(name, f.Name()+"\n")
}

// die ends this process by a signal, without Go's own handling of it.
func die(name string) error {
	return syscall.Exec("/bin/sh", []string{"sh", "-c", "kill -" + name + " $$"}, os.Environ())
}

// listen answers 200 on a loopback port.
func listen(port string) error {
	l, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err != nil {
		return err
	}
	go func() {
		_ = http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "well") }))
	}()
	return nil
}

// post tells the service by HTTP, and fails unless it is taken.
func post(path, body string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, os.Getenv("VIGIL_SERVICE_URL")+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	return ask(req)
}

// door posts to the service as anybody may who knows its address.
func door(path string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	service, _, _ := strings.Cut(os.Getenv("VIGIL_SERVICE_URL"), "/life/")
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, service+path, nil)
	if err != nil {
		return err
	}
	return ask(req)
}

// fetch wants a request to be answered well: METHOD URL.
func fetch(value string) error {
	method, url, _ := strings.Cut(value, " ")
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return err
	}
	return ask(req)
}

// try makes the requests that standard input names, METHOD URL in a line, and prints the status of each.
func try(string) error {
	client := http.Client{Timeout: 30 * time.Second}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		method, url, _ := strings.Cut(lines.Text(), " ")
		req, err := http.NewRequest(method, url, nil)
		if err != nil {
			return err
		}
		answer, err := client.Do(req)
		if err != nil {
			return err
		}
		answer.Body.Close()
		if err := line(os.Stdout, strconv.Itoa(answer.StatusCode)); err != nil {
			return err
		}
	}
	return lines.Err()
}

// ask wants a request to be answered with 200 or 202.
func ask(req *http.Request) error {
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK && answer.StatusCode != http.StatusAccepted {
		return fmt.Errorf("%s", answer.Status)
	}
	return nil
}

// escape leaves a process behind in a session of its own that does not listen and has nothing of this
// one in its environment, and its pid in a file.
func escape(file string) error {
	cmd := exec.Command("/bin/sh", "-c", "trap '' TERM INT HUP; sleep 1000 & wait; wait; sleep 1000")
	cmd.Env = []string{"PATH=/usr/bin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	return replace(file, strconv.Itoa(cmd.Process.Pid)+"\n")
}
