package roleapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/go-chi/chi/v5"

	"vigil/internal/role"
)

// Speaker takes what a worker says in the lines that its notify socket takes, where it has no such
// socket: in a container of its own, or through a proxy.
type Speaker interface {
	Roles
	// Say takes lines of KEY=VALUE. Word of an earlier life is ErrStale and changes nothing. A line that
	// cannot be meant is an error that says so; the others count all the same.
	Say(context.Context, role.Name, Speech) error
}

// Speech is what one worker says.
type Speech struct {
	Rank  int
	Life  string // as in Word
	Lines []byte // at most MaxBody bytes
}

// MountSpeech adds POST /{role}/notify, and the same below /life/UID/ROLE/INC/RANK/ATTEMPT.
func MountSpeech(r chi.Router, roles Speaker) {
	notify := func(w http.ResponseWriter, r *http.Request) {
		handlers{roles}.status(w, r, func(name role.Name, query url.Values) error {
			rank, life, err := speaker(r, name, query)
			if err != nil {
				return err
			}
			lines, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBody))
			if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
				return NewProblem(http.StatusRequestEntityTooLarge, fmt.Sprintf("read words: more than %d bytes", MaxBody))
			}
			if err != nil {
				return badRequest(fmt.Errorf("read words: %w", err))
			}
			return roles.Say(r.Context(), name, Speech{Rank: rank, Life: life, Lines: lines})
		})
	}
	r.Post("/{role}/notify", notify)
	r.Post("/life/{uid}/{role}/{inc}/{rank}/{attempt}/notify", notify)
}
