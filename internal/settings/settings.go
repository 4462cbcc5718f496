// Package settings decides what value a flag has: the command line beats the environment, that beats
// the job file, that beats the default. It remembers where each value came from, so that a user who
// wonders can be told.
package settings

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/pflag"

	"vigil/internal/nearest"
)

// Prefix begins the environment variables that set flags: VIGIL_OPT_MAX_GLOBAL_RESTART sets
// --max-global-restart.
const Prefix = "VIGIL_OPT_"

// Source is where a value came from.
type Source string

// The sources, strongest first.
const (
	Flag        Source = "flag"
	Environment Source = "environment"
	File        Source = "file"
	Default     Source = "default"
)

// Origin is where the value of one flag came from.
type Origin struct {
	Source Source
	Name   string // the flag, the variable or the file; empty for a default
}

// String says it as "flag --lead", "environment VIGIL_OPT_LEAD", "file job.yaml" or "default".
func (o Origin) String() string {
	if o.Name == "" {
		return string(o.Source)
	}
	return string(o.Source) + " " + o.Name
}

// Apply sets the flags of fs that the command line has left alone, from environ (KEY=VALUE) and from
// file (values by the names of flags, as the job file's "controller" has them); fileName names the
// file in origins and errors. Fs must have been parsed. The result has the origin of every flag.
//
// All mistakes are told in one error, a line for each: a value that its flag refuses, and a name that
// no flag has, also where a stronger source would have hidden it. A value that a stronger source
// hides is not looked at. After an error the flags are partly set.
func Apply(fs *pflag.FlagSet, environ []string, file map[string]string, fileName string) (map[string]Origin, error) {
	origins := map[string]Origin{}
	fs.VisitAll(func(f *pflag.Flag) {
		origins[f.Name] = Origin{Source: Default}
		if f.Changed {
			origins[f.Name] = Origin{Flag, "--" + f.Name}
		}
	})
	var wrong []error
	take := func(name, value string, from Origin, told string) {
		f := settable(fs, name)
		if f == nil {
			wrong = append(wrong, unknown(fs, name, told, from))
			return
		}
		if origins[f.Name].Source != Default {
			return
		}
		if err := fs.Set(f.Name, value); err != nil {
			wrong = append(wrong, fmt.Errorf("set %s from %s: %q is no %s: %w", told, from.place(), value, f.Value.Type(), cause(err)))
			return
		}
		origins[f.Name] = from
	}
	vars := variables(environ)
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		take(flagName(name), vars[name], Origin{Environment, name}, name)
	}
	for _, name := range slices.Sorted(maps.Keys(file)) {
		take(name, file[name], Origin{File, fileName}, "--"+name)
	}
	return origins, errors.Join(wrong...)
}

// Peek returns the value that Apply will give to a flag, for what must be known before the job file is
// read, such as its path: that of the command line, else of environ, else the default. A name that fs
// does not have gives "".
func Peek(fs *pflag.FlagSet, environ []string, name string) string {
	f := settable(fs, name)
	if f == nil {
		return ""
	}
	if value, ok := variables(environ)[variableName(f.Name)]; ok && !f.Changed {
		return value
	}
	return f.Value.String()
}

// Known returns a check for the flags of a job file: it refuses a name that fs does not have, with
// the one that was probably meant. The value it leaves to Apply.
func Known(fs *pflag.FlagSet) func(name, value string) error {
	return func(name, _ string) error {
		if settable(fs, name) != nil {
			return nil
		}
		return unknown(fs, name, "--"+name, Origin{})
	}
}

// Print writes a line for every flag that is not hidden, in the order of their names: the flag, its
// value, and where that came from.
func Print(w io.Writer, fs *pflag.FlagSet, origins map[string]Origin) error {
	var flags []*pflag.Flag
	fs.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && f.Name != "help" {
			flags = append(flags, f)
		}
	})
	slices.SortFunc(flags, func(a, b *pflag.Flag) int { return cmp.Compare(a.Name, b.Name) })
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range flags {
		value := f.Value.String()
		if value == "" {
			value = `""`
		}
		if _, err := fmt.Fprintf(t, "--%s\t%s\t%s\n", f.Name, value, origins[f.Name]); err != nil {
			return fmt.Errorf("print settings: %w", err)
		}
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("print settings: %w", err)
	}
	return nil
}

func (o Origin) place() string {
	if o.Source == File {
		return o.Name
	}
	return "the environment"
}

// variables returns the environment variables that set flags; of one that is there twice, the last.
func variables(environ []string) map[string]string {
	vars := map[string]string{}
	for _, pair := range environ {
		if name, value, ok := strings.Cut(pair, "="); ok && strings.HasPrefix(name, Prefix) {
			vars[name] = value
		}
	}
	return vars
}

func flagName(variable string) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(variable, Prefix)), "_", "-")
}

func variableName(flag string) string {
	return Prefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// settable returns the flag of that name, nil for none. Asking for help is no setting.
func settable(fs *pflag.FlagSet, name string) *pflag.Flag {
	if name == "" || name == "help" {
		return nil
	}
	return fs.Lookup(name)
}

func unknown(fs *pflag.FlagSet, name, told string, from Origin) error {
	var names []string
	fs.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && f.Name != "help" {
			names = append(names, f.Name)
		}
	})
	meant := nearest.Word(name, names)
	switch {
	case meant != "" && from.Source == Environment:
		meant = fmt.Sprintf("; did you mean %s?", variableName(meant))
	case meant != "":
		meant = fmt.Sprintf("; did you mean --%s?", meant)
	}
	if from.Source == "" {
		return fmt.Errorf("there is no flag %s%s", told, meant)
	}
	return fmt.Errorf("set %s from %s: there is no such flag%s", told, from.place(), meant)
}

// cause leaves out of pflag's error the value and the flag, which the caller says.
func cause(err error) error {
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) && errors.Unwrap(invalid) != nil {
		err = errors.Unwrap(invalid)
	}
	var number *strconv.NumError
	if errors.As(err, &number) {
		return number.Err
	}
	return err
}
