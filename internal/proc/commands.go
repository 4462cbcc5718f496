package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	commandSaid  = 4 << 10                // bytes of a command's output that are kept
	commandDrain = 100 * time.Millisecond // for the rest of its output to be read when others hold it open
)

// Command is one run of a command of the user's.
type Command struct {
	Name  string   // for the log
	Argv  []string // the program, as Spec.Path has it, and its arguments
	Dir   string   // empty: ours
	Env   []string // NAME=VALUE; of several with one name the last counts
	Input []byte   // its standard input
	About []any    // what it is about, for the log

	// Limit is how long it may take. What it has put into the background by then is ended too.
	Limit time.Duration
}

// Commands runs short commands of the user's, such as hooks, each in a session of its own, and ends what they leave in
// the background. It may be used from many goroutines at once.
type Commands struct {
	keeper *Keeper
	mark   string // what the marks of all begin with
	log    *slog.Logger

	runs  atomic.Int64
	left  sync.WaitGroup
	over  context.Context // ends when nothing may be in the background any more
	close context.CancelFunc
}

// NewCommands returns what runs commands of one kind. name tells them from those of other kinds and programs, as a life's
// beginning does: what an earlier program of that name has left in the background is ended after limit.
func (k *Keeper) NewCommands(name string, limit time.Duration, log *slog.Logger) *Commands {
	c := &Commands{keeper: k, mark: name + "/", log: log}
	c.over, c.close = context.WithCancel(context.Background())
	if earlier := (Tree{Mark: c.mark}); len(k.Remains(earlier)) > 0 {
		c.endLater(earlier, limit, "an earlier controller's commands", nil, nil)
	}
	return c
}

// Run runs a command to its end and returns the end of what it has said. The error says that it has failed, was not done
// within its limit, or why ctx has ended; in the last two cases everything of it has been killed.
func (c *Commands) Run(ctx context.Context, cmd Command) (said string, err error) {
	began := time.Now()
	p, out, err := c.start(cmd)
	if err != nil {
		return "", err
	}
	limit := time.NewTimer(cmd.Limit)
	defer limit.Stop()
	select {
	case <-p.Done():
		exit := p.Exit()
		exit.PID = 0 // of a process that nobody can look for
		if exit.Signal != "" || exit.Code != 0 {
			err = errors.New(exit.String())
		}
	case <-limit.C:
		err = fmt.Errorf("not done after %s", cmd.Limit)
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	select {
	case <-p.Done():
		if len(c.keeper.Remains(p.Tree())) > 0 {
			said = out.drained()
			c.endLater(p.Tree(), cmd.Limit-time.Since(began), cmd.Name, cmd.About, out)
			return said, err
		}
	default:
	}
	if _, left := c.keeper.Clear(context.WithoutCancel(ctx), p.Tree()); left != nil {
		err = errors.Join(err, left)
	}
	defer out.reader.Close()
	return out.drained(), err
}

// Close waits for what commands have left in the background, until ctx ends; then it ends that. No command may run any
// more.
func (c *Commands) Close(ctx context.Context) {
	gone := make(chan struct{})
	go func() {
		c.left.Wait()
		close(gone)
	}()
	select {
	case <-gone:
	case <-ctx.Done():
	}
	c.close()
	<-gone
}

// endLater ends a tree when its time is over or everything is, and says who was there.
func (c *Commands) endLater(t Tree, in time.Duration, name string, about []any, out *outputTail) {
	c.left.Go(func() {
		if out != nil {
			defer out.reader.Close()
		}
		tick := time.NewTicker(time.Second) // nobody says when the last of them ends
		defer tick.Stop()
		limit := time.NewTimer(in)
		defer limit.Stop()
		for waiting := true; waiting; {
			select {
			case <-tick.C:
				if len(c.keeper.Remains(t)) == 0 {
					return
				}
			case <-limit.C:
				waiting = false
			case <-c.over.Done():
				waiting = false
			}
		}
		held, err := c.keeper.Clear(context.Background(), t)
		if err != nil {
			c.log.Error(name+": what it has left in the background cannot be ended", append(slices.Clone(about), "error", err)...)
		} else if len(held) > 0 {
			c.log.Warn(name+": what it has left in the background was ended", append(slices.Clone(about), "who", names(held))...)
		}
	})
}

// names says who holders are, the first few of them.
func names(all []Holder) string {
	const most = 5
	var words []string
	for i, h := range all {
		if i == most {
			words = append(words, fmt.Sprintf("and %d more", len(all)-most))
			break
		}
		words = append(words, fmt.Sprintf("pid %d %s", h.PID, h.Name))
	}
	return strings.Join(words, ", ")
}

// start starts a command.
func (c *Commands) start(cmd Command) (*Process, *outputTail, error) {
	input, err := inMemory(cmd.Input)
	if err != nil {
		return nil, nil, fmt.Errorf("start %s: %w", cmd.Argv[0], err)
	}
	defer input.Close()
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, nil, fmt.Errorf("start %s: %w", cmd.Argv[0], err)
	}
	defer writer.Close()
	mark := fmt.Sprintf("%s%d.%d", c.mark, os.Getpid(), c.runs.Add(1))
	p, err := c.keeper.Start(Spec{
		Path: cmd.Argv[0], Args: cmd.Argv[1:], Dir: cmd.Dir, Env: lastOfEach(append(slices.Clone(cmd.Env), Mark+"="+mark)),
		Stdin: input, Stdout: writer, Stderr: writer,
	})
	if err != nil {
		reader.Close()
		return nil, nil, err
	}
	out := &outputTail{reader: reader, read: make(chan struct{})}
	go out.follow()
	return p, out, nil
}

// lastOfEach returns an environment in which every name stands once.
func lastOfEach(environ []string) []string {
	at := map[string]int{}
	var out []string
	for _, pair := range environ {
		name, _, _ := strings.Cut(pair, "=")
		if i, known := at[name]; known {
			out[i] = pair
			continue
		}
		at[name] = len(out)
		out = append(out, pair)
	}
	return out
}

// inMemory returns a file with that content, which is to be read from its beginning. Unlike a pipe, it fails nobody who
// does not read it.
func inMemory(content []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("input", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("hold its input: %w", err)
	}
	f := os.NewFile(uintptr(fd), "input")
	if _, err := f.WriteAt(content, 0); err != nil {
		f.Close()
		return nil, fmt.Errorf("hold its input: %w", bare(err))
	}
	return f, nil
}

// outputTail keeps the end of what is written into a pipe, and reads until nobody can write any more, so that no writer
// ever waits or fails.
type outputTail struct {
	reader *os.File
	read   chan struct{} // closed when all is read

	mu   sync.Mutex
	text bytes.Buffer
}

func (o *outputTail) follow() {
	defer close(o.read)
	buf := make([]byte, 4<<10)
	for {
		n, err := o.reader.Read(buf)
		o.mu.Lock()
		o.text.Write(buf[:n])
		if over := o.text.Len() - commandSaid; over > 0 {
			o.text.Next(over)
		}
		o.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// drained returns the end of what was written, when all is read, or when others have held the pipe open for a moment.
func (o *outputTail) drained() string {
	wait := time.NewTimer(commandDrain)
	defer wait.Stop()
	select {
	case <-o.read:
	case <-wait.C:
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.TrimSpace(strings.ToValidUTF8(o.text.String(), "\uFFFD"))
}
