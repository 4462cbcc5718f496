package settings

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

type options struct {
	restarts int
	check    bool
	timeout  time.Duration
	address  string
	devices  []string
}

func flags(o *options) *pflag.FlagSet {
	fs := pflag.NewFlagSet("controller", pflag.ContinueOnError)
	fs.IntVar(&o.restarts, "max-global-restart", 3, "")
	fs.BoolVar(&o.check, "use-health-check", false, "")
	fs.DurationVar(&o.timeout, "heartbeat-timeout", 2*time.Minute, "")
	fs.StringVar(&o.address, "http", "127.0.0.1:8000", "")
	fs.StringSliceVar(&o.devices, "gpus", nil, "")
	fs.BoolP("help", "h", false, "")
	return fs
}

// shows: A86
func TestFlagsBeatEnvironmentBeatsJobFileBeatsDefaults(t *testing.T) {
	const fromFlag, fromEnviron, fromFile, byDefault = 40, 30, 20, 3
	for _, c := range []struct {
		about         string
		args, environ []string
		file          map[string]string
		want          int
		origin        string
	}{
		{"nobody says", nil, nil, nil, byDefault, "default"},
		{"the file says", nil, nil, map[string]string{"max-global-restart": "20"}, fromFile, "file job.yaml"},
		{"the environment says", nil, []string{"VIGIL_OPT_MAX_GLOBAL_RESTART=30"}, nil, fromEnviron, "environment VIGIL_OPT_MAX_GLOBAL_RESTART"},
		{"the environment and the file say", nil, []string{"VIGIL_OPT_MAX_GLOBAL_RESTART=30"}, map[string]string{"max-global-restart": "20"}, fromEnviron, "environment VIGIL_OPT_MAX_GLOBAL_RESTART"},
		{"the flag says", []string{"--max-global-restart=40"}, nil, nil, fromFlag, "flag --max-global-restart"},
		{"the flag says the default", []string{"--max-global-restart=3"}, []string{"VIGIL_OPT_MAX_GLOBAL_RESTART=30"}, nil, byDefault, "flag --max-global-restart"},
		{"all say", []string{"--max-global-restart=40"}, []string{"VIGIL_OPT_MAX_GLOBAL_RESTART=30"}, map[string]string{"max-global-restart": "20"}, fromFlag, "flag --max-global-restart"},
	} {
		t.Run(c.about, func(t *testing.T) {
			var o options
			fs := flags(&o)
			if err := fs.Parse(c.args); err != nil {
				t.Fatal(err)
			}
			origins, err := Apply(fs, append([]string{"HOME=/root"}, c.environ...), c.file, "job.yaml")
			if err != nil {
				t.Fatal(err)
			}
			if o.restarts != c.want || origins["max-global-restart"].String() != c.origin {
				t.Errorf("%d from %q, want %d from %q", o.restarts, origins["max-global-restart"], c.want, c.origin)
			}
			if got := origins["http"].String(); got != "default" {
				t.Errorf("http comes from %q", got)
			}
		})
	}
}

// shows: A86
func TestWhatIsInForceIsPrintedWithWhereItCameFrom(t *testing.T) {
	var o options
	fs := flags(&o)
	if err := fs.Parse([]string{"--http", ""}); err != nil {
		t.Fatal(err)
	}
	origins, err := Apply(fs, []string{"VIGIL_OPT_GPUS=4,5"}, map[string]string{"use-health-check": "true"}, "job.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := Print(&b, fs, origins); err != nil {
		t.Fatal(err)
	}
	want := `--gpus                [4,5]  environment VIGIL_OPT_GPUS
--heartbeat-timeout   2m0s   default
--http                ""     flag --http
--max-global-restart  3      default
--use-health-check    true   file job.yaml
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAListFromOneSourceIsNotAddedToThatOfAnother(t *testing.T) {
	var o options
	if _, err := Apply(flags(&o), []string{"VIGIL_OPT_GPUS=4,5"}, map[string]string{"gpus": "1"}, "job.yaml"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"4", "5"}, o.devices); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestEveryMistakeIsToldOnceWithWhatWasMeant(t *testing.T) {
	var o options
	_, err := Apply(flags(&o),
		[]string{"VIGIL_OPT_MAX_GLOBL_RESTART=1", "VIGIL_OPT_USE_HEALTH_CHECK=maybe", "VIGIL_OPT_XYZ=1", "VIGIL_OPT_=1", "VIGIL_OPT_HELP=1", "VIGIL_JOB=x"},
		map[string]string{"heartbeat-timeout": "12", "htp": "x"}, "job.yaml")
	want := `set VIGIL_OPT_ from the environment: there is no such flag
set VIGIL_OPT_HELP from the environment: there is no such flag
set VIGIL_OPT_MAX_GLOBL_RESTART from the environment: there is no such flag; did you mean VIGIL_OPT_MAX_GLOBAL_RESTART?
set VIGIL_OPT_USE_HEALTH_CHECK from the environment: "maybe" is no bool: invalid syntax
set VIGIL_OPT_XYZ from the environment: there is no such flag
set --heartbeat-timeout from job.yaml: "12" is no duration: time: missing unit in duration "12"
set --htp from job.yaml: there is no such flag; did you mean --http?`
	if err == nil {
		t.Fatal("no error")
	}
	if diff := cmp.Diff(want, err.Error()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAnUnknownFlagIsToldAlsoWhereTheCommandLineHasTheRightOne(t *testing.T) {
	var o options
	fs := flags(&o)
	if err := fs.Parse([]string{"--http=:1"}); err != nil {
		t.Fatal(err)
	}
	if _, err := Apply(fs, []string{"VIGIL_OPT_HTPP=:2"}, nil, ""); err == nil {
		t.Error("VIGIL_OPT_HTPP is taken")
	}
	check := Known(fs)
	if err := check("http", "x"); err != nil {
		t.Error(err)
	}
	if err := check("htpp", "x"); err == nil || err.Error() != "there is no flag --htpp; did you mean --http?" {
		t.Errorf("got %v", err)
	}
}

func TestPeekSeesWhatApplyWillSetWithoutAJobFile(t *testing.T) {
	environ := []string{"VIGIL_OPT_HTTP=:2"}
	for args, want := range map[string]string{"": ":2", "--http=:1": ":1"} {
		var o options
		fs := flags(&o)
		if err := fs.Parse(strings.Fields(args)); err != nil {
			t.Fatal(err)
		}
		if got := Peek(fs, environ, "http"); got != want {
			t.Errorf("%q: peek sees %q, want %q", args, got, want)
		}
		if _, err := Apply(fs, environ, nil, ""); err != nil || o.address != want {
			t.Errorf("%q: apply sets %q, want %q (%v)", args, o.address, want, err)
		}
	}
	var o options
	if got := Peek(flags(&o), nil, "http"); got != "127.0.0.1:8000" {
		t.Errorf("without any source: %q", got)
	}
}
