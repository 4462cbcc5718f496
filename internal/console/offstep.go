package console

import (
	"fmt"
	"log/slog"

	"vigil/internal/event"
)

// offStep says in words how a life begins off the step that it was given.
var offStep = map[event.Kind]string{
	event.StepWentBack: "began below the step that it was given",
	event.StateBehind:  "began below the step that it was given, at its checkpoint",
	event.StepAhead:    "began beyond the step that it was given",
	event.StepsApart:   "began apart from others",
}

// WarnOffStep returns what warns of every life that begins off its step. health says each once per life.
func WarnOffStep(log *slog.Logger) func(event.Event) {
	return func(e event.Event) {
		if words, is := offStep[e.Kind]; is {
			log.Warn(fmt.Sprintf("%s rank %d %s", e.Role, e.Rank, words), "incarnation", e.Incarnation, "detail", e.Detail)
		}
	}
}
