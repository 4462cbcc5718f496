package command

import (
	"fmt"
	"regexp"

	"github.com/spf13/pflag"

	"vigil/internal/controller"
	"vigil/internal/identity"
)

// jobName is what a job file's name may be too.
var jobName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$`)

// addWhoseFlags declares what says whose run it is.
func addWhoseFlags(fs *pflag.FlagSet, r *oneRole) {
	fs.StringVar(&r.user, "user", "", "run the workers as this user, NAME or UID, with :GROUP; root only")
	fs.StringVar(&r.name, "name", "", "name of the run; refused while a run of that name is alive (default: what this folder and command line have, such as train-3f9a2c; a second one at the same time has train-3f9a2c-2)")
	fs.BoolVar(&r.requeue, "requeue", false, "SIGTERM leaves the run open, for a scheduler that starts the same command again; always so in a job of Slurm")
}

// choose finds the state directory of a script's run, unless it is given, and takes its lock. Who the run is, the folder
// and the command line say, or --name.
func (p *program) choose(fs *pflag.FlagSet, r *oneRole, args []string, folder string) error {
	if r.name != "" && !jobName.MatchString(r.name) {
		return usage(fmt.Errorf("--name %q: want a letter or digit, then up to 39 letters, digits, dots, - and _", r.name))
	}
	argv := args
	if r.module {
		argv = append([]string{"-m"}, args...)
	}
	id := identity.Of(folder, argv, p.environ)
	o := identity.Options{Resume: r.Resume, Old: r.Job.Name, Version: r.Version}
	var err error
	if r.StateDir != "" {
		if r.name != "" {
			r.Job.Name = r.name
		}
		return nil
	}
	if o.States, err = controller.StateHome(); err != nil {
		return usage(err)
	}
	var home identity.Home
	if r.name != "" {
		home, err = identity.Named(o, r.name, id)
	} else {
		home, err = identity.Take(o, id)
	}
	switch {
	case controller.DiskFails(err):
		return &controller.StaysOpenError{UID: "of this command, if it is open,", Err: err, Again: r.Command.Again}
	case err != nil:
		return usage(err)
	}
	r.Job.Name, r.StateDir, r.StateLock, r.Notes = home.Name, home.Dir, home.Lock, home.Note
	if r.name == "" {
		named := p.commandLine("run", fs, "--name", home.Name)
		r.Command.Named, r.Command.Shared = &named, home.Shared
	}
	return nil
}
