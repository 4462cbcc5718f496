package command

import (
	"testing"

	"github.com/spf13/pflag"
)

// shows: FAULT-G2
func TestACommandIsSaidAsAShellTakesIt(t *testing.T) {
	for _, tt := range []struct {
		verb         string
		args         []string
		line, resume string
	}{
		{"", []string{"bin/controller", "--job", "my job.yaml"}, "bin/controller --job 'my job.yaml'", "bin/controller --resume --job 'my job.yaml'"},
		{"", []string{"controller"}, "controller", "controller --resume"},
		{"", []string{"controller", "--forget-state", "--job", "a"}, "controller --job a", "controller --resume --job a"},
		{"", []string{"controller", "--job", "a", "--resume"}, "controller --job a", "controller --job a --resume"},
		{"run", []string{"vigil", "run", "train.py", "--lr=1e-3", "it's"}, `vigil run train.py --lr=1e-3 'it'\''s'`, `vigil run --resume train.py --lr=1e-3 'it'\''s'`},
		{"run", []string{"vigil", "run", "--job", "a", "--", "sh", "-c", "--resume --forget-state"}, "vigil run --job a -- sh -c '--resume --forget-state'", "vigil run --resume --job a -- sh -c '--resume --forget-state'"},
		{"run", []string{"vigil", "run", "train.py", "--forget-state", "--resume"}, "vigil run train.py --forget-state --resume", "vigil run --resume train.py --forget-state --resume"},
		{"run", []string{"vigil", "run", "--", "run", ""}, "vigil run -- run ''", "vigil run --resume -- run ''"},
	} {
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		fs.SetInterspersed(false)
		fs.String("job", "", "")
		fs.Bool("resume", false, "")
		fs.Bool("forget-state", false, "")
		from := tt.args[1:]
		if tt.verb != "" {
			from = from[1:]
		}
		if err := fs.Parse(from); err != nil {
			t.Fatal(err)
		}
		p := &program{args: tt.args}
		if got := p.commandLine(tt.verb, fs); got.Again != tt.line || got.Resume != tt.resume {
			t.Errorf("%q: %s\nand %s", tt.args, got.Again, got.Resume)
		}
	}
}
