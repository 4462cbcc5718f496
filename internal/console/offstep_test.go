package console

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"vigil/internal/event"
)

// shows: FAULT-B5 FAULT-B6
func TestALifeThatBeginsOffItsStepIsAWarning(t *testing.T) {
	for kind, want := range map[event.Kind]string{
		event.StepWentBack: "critic rank 1 began below the step that it was given",
		event.StateBehind:  "critic rank 1 began below the step that it was given, at its checkpoint",
		event.StepAhead:    "critic rank 1 began beyond the step that it was given",
		event.StepsApart:   "critic rank 1 began apart from others",
		event.FirstStep:    "",
	} {
		var said bytes.Buffer
		warn := WarnOffStep(slog.New(slog.NewTextHandler(&said, nil)))
		warn(event.Event{Kind: kind, Role: "critic", Rank: 1, Incarnation: 2, Detail: "given step 24, began at 3"})
		switch got := said.String(); {
		case want == "" && got != "":
			t.Errorf("%s: said %q", kind, got)
		case want != "" && (!strings.Contains(got, "level=WARN") || !strings.Contains(got, `"`+want+`"`) || !strings.Contains(got, "given step 24, began at 3")):
			t.Errorf("%s: said %q, want a warning %q", kind, got, want)
		}
	}
}
