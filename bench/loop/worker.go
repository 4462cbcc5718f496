package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// The environment of the benchmark's own worker.
const (
	earKey = "BENCH_EAR" // path of the datagram socket to say the first word to
	whoKey = "BENCH_WHO" // which supervisor started it
)

// firstWord is what a worker says as its first act.
type firstWord struct {
	Who    string
	PID    int
	At     time.Time // when its main function began
	Notify string    // its NOTIFY_SOCKET
}

// beWorker is the whole worker, the same for every supervisor: it says that it runs, and waits for its
// end.
func beWorker(began time.Time) error {
	w := firstWord{Who: os.Getenv(whoKey), PID: os.Getpid(), At: began, Notify: os.Getenv("NOTIFY_SOCKET")}
	text, err := json.Marshal(w)
	if err != nil {
		return err
	}
	ear, err := net.Dial("unixgram", os.Getenv(earKey))
	if err != nil {
		return fmt.Errorf("say first word: %w", err)
	}
	if _, err := ear.Write(text); err != nil {
		return fmt.Errorf("say first word: %w", err)
	}
	for {
		if err := syscall.Pause(); err != nil && err != syscall.EINTR {
			return err
		}
	}
}

// ear hears the first words of workers.
type ear struct {
	path  string
	conn  *net.UnixConn
	words map[string]chan firstWord // by who
}

func listen(folder string, who ...string) (*ear, error) {
	e := &ear{path: filepath.Join(folder, "ear"), words: map[string]chan firstWord{}}
	for _, w := range who {
		e.words[w] = make(chan firstWord, 16)
	}
	var err error
	if e.conn, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: e.path, Net: "unixgram"}); err != nil {
		return nil, fmt.Errorf("hear workers: %w", err)
	}
	go e.hear()
	return e, nil
}

func (e *ear) hear() {
	buf := make([]byte, 4096)
	for {
		n, err := e.conn.Read(buf)
		if err != nil {
			return
		}
		var w firstWord
		if json.Unmarshal(buf[:n], &w) == nil {
			e.words[w.Who] <- w
		}
	}
}

// env is what a worker of that supervisor needs in its environment.
func (e *ear) env(who string) []string { return []string{earKey + "=" + e.path, whoKey + "=" + who} }

// next waits for the first word of the next worker.
func (e *ear) next(who string) (firstWord, error) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case w := <-e.words[who]:
		return w, nil
	case <-timer.C:
		return firstWord{}, fmt.Errorf("wait for a worker of %s: none within %s", who, patience)
	}
}

func (e *ear) close() { e.conn.Close() }
