package roleapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"vigil/internal/role"
)

// Problem is an error as it stands in an answer: problem details of RFC 9457, type about:blank, with
// two members of our own.
type Problem struct {
	Title  string          `json:"title" doc:"The status in words." example:"Not Found"`
	Status int             `json:"status" doc:"The HTTP status." example:"404"`
	Detail string          `json:"detail,omitempty" doc:"What could not be done, to whom, why."`
	Errors []ProblemDetail `json:"errors,omitempty" nullable:"false" doc:"What is wrong with each part of the request, where parts can be told."`
	Roles  []role.Name     `json:"roles,omitempty" nullable:"false" doc:"The roles that exist, where an unknown one was asked for."`
	Held   []string        `json:"held,omitempty" nullable:"false" doc:"What is still there, where a stop was not complete."`
}

// ProblemDetail is one mistake in a request.
type ProblemDetail struct {
	Message  string `json:"message,omitempty" doc:"What is wrong."`
	Location string `json:"location,omitempty" doc:"Where, such as query.limit."`
	Value    any    `json:"value,omitempty" doc:"What stood there."`
}

// NewProblem returns a problem with that status.
func NewProblem(status int, detail string) *Problem {
	return &Problem{Title: http.StatusText(status), Status: status, Detail: detail}
}

// AsProblem returns the problem that answers err, by the rules that Roles gives.
func AsProblem(err error) *Problem {
	if p, ok := errors.AsType[*Problem](err); ok {
		return p
	}
	if e, ok := errors.AsType[*UnknownError](err); ok {
		p := NewProblem(http.StatusNotFound, err.Error())
		p.Roles = e.Known
		return p
	}
	if e, ok := errors.AsType[*HeldError](err); ok {
		p := NewProblem(http.StatusGatewayTimeout, err.Error())
		p.Held = e.Held
		return p
	}
	switch {
	case errors.Is(err, ErrStale):
		return NewProblem(http.StatusConflict, err.Error())
	case errors.Is(err, ErrUnavailable):
		return NewProblem(http.StatusServiceUnavailable, err.Error())
	case errors.Is(err, context.DeadlineExceeded):
		return NewProblem(http.StatusGatewayTimeout, err.Error())
	}
	return NewProblem(http.StatusInternalServerError, err.Error())
}

func (p *Problem) Error() string { return p.Detail }

// GetStatus returns the HTTP status. The name is what huma asks of an error that knows its status.
func (p *Problem) GetStatus() int { return p.Status }

// ContentType returns the media type of the document; huma asks for it.
func (p *Problem) ContentType(string) string { return "application/problem+json" }

// WriteProblem answers with the problem that err is.
func WriteProblem(w http.ResponseWriter, err error) {
	p := AsProblem(err)
	write(w, p.Status, "application/problem+json", p)
}

// WriteJSON answers with a JSON document.
func WriteJSON(w http.ResponseWriter, status int, body any) {
	write(w, status, "application/json", body)
}

// answerTime is how long a client may take to read an answer that is ready.
const answerTime = 30 * time.Second

// write gives the client a time of its own to read the answer, however long it took to make.
func write(w http.ResponseWriter, status int, contentType string, body any) {
	// Not every writer has deadlines; then the server's own limit holds.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerTime))
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	// An error here means that the client has gone: nobody is left to be told.
	_ = json.NewEncoder(w).Encode(body)
}
