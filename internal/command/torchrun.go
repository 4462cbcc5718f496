package command

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// settledFlags are torchrun's flags that ask for what is settled here in another way, and how.
var settledFlags = []struct{ name, settled string }{
	{"master-addr", "ranks of this machine meet at 127.0.0.1"},
	{"master-port", "every life has a free port of its own"},
	{"rdzv-backend", "ranks are given by the controller"},
	{"rdzv-endpoint", "ranks are given by the controller"},
	{"rdzv-id", "every run has an id of its own"},
	{"rdzv-conf", "ranks are given by the controller"},
	{"local-addr", "ranks of this machine meet at 127.0.0.1"},
	{"monitor-interval", "an end is seen at once"},
	{"start-method", "a script is always a process of its own"},
}

// addSettledFlags declares them, so that a line for torchrun can be taken over as it is.
func addSettledFlags(fs *pflag.FlagSet) {
	for _, f := range settledFlags {
		fs.String(f.name, "", "torchrun's; not needed: "+f.settled)
		_ = fs.MarkHidden(f.name) // declared in the line above
	}
}

// noteSettledFlags says of every such flag that was given that it has no effect, and why.
func (p *program) noteSettledFlags(fs *pflag.FlagSet) {
	for _, f := range settledFlags {
		if fs.Changed(f.name) {
			fmt.Fprintf(p.stderr, "--%s %s is not used: %s\n", f.name, strings.TrimSpace(fs.Lookup(f.name).Value.String()), f.settled)
		}
	}
}
