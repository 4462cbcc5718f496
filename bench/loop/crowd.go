package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"vigil/api"
	"vigil/bench/result"
	"vigil/internal/proc"
	"vigil/internal/role"
	"vigil/internal/wire/rpc"
)

// perService is how many workers share a service in the large job, as on a machine with eight devices.
const perService = 8

// clockTick is the unit of CPU time in /proc/PID/stat (USER_HZ, proc_pid_stat(5)).
const clockTick = 10 * time.Millisecond

// crowd measures what watching ten thousand workers costs a controller, each of which says a step once
// a second: its services are in this process, its watching half is in another.
func (b *bench) crowd() (err error) {
	folder := filepath.Join(b.folder, "crowd")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	cmd := exec.Command(b.self, watcherCommand, folder)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("start watcher: %w", err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("start watcher: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start watcher: %w", err)
	}
	defer func() { err = errors.Join(err, in.Close(), cmd.Wait()) }()
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		return fmt.Errorf("start watcher: it does not listen: %w", err)
	}
	links, err := join(folder)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for i, l := range links {
		running.Go(func() { _ = l.Run(ctx) }) // it ends with ctx, or with the watcher
		running.Go(func() { speak(ctx, l, i) })
	}
	used, seconds, err := usage(cmd.Process.Pid, b.watch)
	b.report.Add(result.Row{Name: "watching 10,000 workers at 1/s, CPU", Unit: "cores", Value: used / seconds, N: 1}, result.Below(1))
	peak, err2 := peakMemory(cmd.Process.Pid)
	b.report.Add(result.Row{Name: "watching 10,000 workers at 1/s, peak memory", Unit: "MB", Value: peak, N: 1}, result.Below(500))
	cancel()
	running.Wait()
	return errors.Join(err, err2)
}

// join registers all services.
func join(folder string) ([]*rpc.Link, error) {
	target := "unix://" + filepath.Join(folder, watcherSocket)
	var links []*rpc.Link
	var group errgroup.Group
	group.SetLimit(16)
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	for _, s := range many() {
		for index := range s.Workers / perService {
			l, err := proc.ListenUnix(filepath.Join(folder, string(s.Name)+"."+strconv.Itoa(index)))
			if err != nil {
				return nil, err
			}
			link, err := rpc.NewLink(rpc.LinkOptions{
				Controller: target, JobUID: manyJob, ID: rpc.ServiceID{Role: s.Name, Index: index}, PID: 100_000 + len(links), Listener: l,
				Orders: func(context.Context, *api.ToService) *api.Answer { return &api.Answer{} },
			})
			if err != nil {
				return nil, err
			}
			links = append(links, link)
			group.Go(func() error { return link.Register(ctx) })
		}
	}
	return links, group.Wait()
}

// speak says a step of every rank of a service once a second, each at its own moment.
func speak(ctx context.Context, l *rpc.Link, number int) {
	perRole := manyRanks / manyRoles / perService
	name := many()[number/perRole].Name
	first := number % perRole * perService
	for rank := range perService {
		l.Send(&api.FromService{Word: &api.FromService_Worker{Worker: &api.WorkerState{Life: wireLife(name, first+rank), State: string(role.WorkerReady), Pid: 1}}})
	}
	tick := time.NewTicker(time.Second / perService)
	defer tick.Stop()
	for n := int64(0); ; n++ {
		select {
		case <-tick.C:
			rank := int(n % perService)
			l.Beat(&api.Beat{Life: wireLife(name, first+rank), HasStep: true, Step: n / perService})
		case <-ctx.Done():
			return
		}
	}
}

func wireLife(name role.Name, rank int) *api.Life { return rpc.WireLife(lifeOf(name, rank)) }

// usage returns how much CPU time a process uses in the time given, after a while in which it settles,
// both in seconds.
func usage(pid int, d time.Duration) (used, seconds float64, err error) {
	timer := time.NewTimer(3 * time.Second)
	defer timer.Stop()
	<-timer.C
	before, err := cpuTime(pid)
	if err != nil {
		return 0, 1, err
	}
	began := time.Now()
	timer.Reset(d)
	<-timer.C
	after, err := cpuTime(pid)
	return (after - before).Seconds(), time.Since(began).Seconds(), err
}

// cpuTime is what a process has used so far (fields 14 and 15 of /proc/PID/stat).
func cpuTime(pid int) (time.Duration, error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, fmt.Errorf("read CPU time: %w", err)
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	user, err1 := strconv.Atoi(fields[11])
	system, err2 := strconv.Atoi(fields[12])
	return time.Duration(user+system) * clockTick, errors.Join(err1, err2)
}

// peakMemory is the most memory that a process has had, in MB (VmHWM of proc_pid_status(5)).
func peakMemory(pid int) (float64, error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0, fmt.Errorf("read memory: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseFloat(strings.Fields(value)[0], 64)
			return kib * 1024 / 1e6, err
		}
	}
	return 0, errors.New("read memory: no VmHWM")
}
