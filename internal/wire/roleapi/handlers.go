package roleapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"vigil/internal/role"
)

// StepAnswer answers get_step.
type StepAnswer struct {
	Step int64 `json:"step" doc:"The role's current step." minimum:"0"`
}

// SetStepAnswer answers set_step.
type SetStepAnswer struct {
	Status string `json:"status" doc:"ok: the running worker has acknowledged the step. pending: it is taken at the next start." enum:"ok,pending"`
	Step   int64  `json:"step" doc:"The step that was set." minimum:"0"`
}

// StatusAnswer answers what has nothing more to say.
type StatusAnswer struct {
	Status string `json:"status" doc:"Always ok." enum:"ok"`
}

// ReportBody is the JSON form of a report's body.
type ReportBody struct {
	Error string `json:"error" doc:"What failed."`
	Fatal bool   `json:"fatal,omitempty" doc:"Restarting cannot help: the job stops."`
}

type handlers struct{ roles Roles }

func (h handlers) getStep(w http.ResponseWriter, r *http.Request) {
	h.answer(w, r, func(name role.Name, _ url.Values) (int, any, error) {
		step, err := h.roles.Step(r.Context(), name)
		return http.StatusOK, StepAnswer{step}, err
	})
}

func (h handlers) setStep(w http.ResponseWriter, r *http.Request) {
	h.answer(w, r, func(name role.Name, query url.Values) (int, any, error) {
		text, err := one(query, "step")
		if err != nil {
			return 0, nil, err
		}
		step, err := ParseStep(text)
		if err != nil {
			return 0, nil, badRequest(err)
		}
		pending, err := h.roles.SetStep(r.Context(), name, step)
		if pending {
			return http.StatusAccepted, SetStepAnswer{"pending", step}, err
		}
		return http.StatusOK, SetStepAnswer{"ok", step}, err
	})
}

func (h handlers) stopService(w http.ResponseWriter, r *http.Request) {
	h.status(w, r, func(name role.Name, _ url.Values) error { return h.roles.StopService(r.Context(), name) })
}

func (h handlers) markUnhealthy(w http.ResponseWriter, r *http.Request) {
	h.status(w, r, func(name role.Name, _ url.Values) error { return h.roles.MarkUnhealthy(r.Context(), name) })
}

func (h handlers) heartbeat(w http.ResponseWriter, r *http.Request) {
	h.status(w, r, func(name role.Name, query url.Values) error {
		rank, life, err := speaker(r, name, query)
		if err != nil {
			return err
		}
		word := Word{Rank: rank, Life: life}
		if query.Has("step") {
			text, err := one(query, "step")
			if err != nil {
				return err
			}
			step, err := ParseStep(text)
			if err != nil {
				return badRequest(err)
			}
			word.Step = &step
		}
		return h.roles.Heartbeat(r.Context(), name, word)
	})
}

func (h handlers) reportError(w http.ResponseWriter, r *http.Request) {
	h.status(w, r, func(name role.Name, query url.Values) error {
		rank, life, err := speaker(r, name, query)
		if err != nil {
			return err
		}
		report, err := readReport(w, r)
		if err != nil {
			return err
		}
		report.Rank, report.Life = rank, life
		return h.roles.ReportError(r.Context(), name, report)
	})
}

func (h handlers) pauseWatch(w http.ResponseWriter, r *http.Request) {
	h.status(w, r, func(name role.Name, query url.Values) error {
		text, err := one(query, "for")
		if err != nil {
			return err
		}
		pause, err := time.ParseDuration(text)
		if err != nil || pause <= 0 {
			return badRequest(fmt.Errorf("query for=%q: want a time above zero, such as 90s or 10m", text))
		}
		rank, err := worker(query)
		if err != nil {
			return err
		}
		return h.roles.PauseWatch(r.Context(), name, rank, pause)
	})
}

func (h handlers) resumeWatch(w http.ResponseWriter, r *http.Request) {
	h.status(w, r, func(name role.Name, query url.Values) error {
		rank, err := worker(query)
		if err != nil {
			return err
		}
		return h.roles.ResumeWatch(r.Context(), name, rank)
	})
}

func (h handlers) admit(w http.ResponseWriter, r *http.Request) {
	h.status(w, r, func(name role.Name, query url.Values) error {
		if _, err := one(query, "worker"); err != nil {
			return err
		}
		rank, err := worker(query)
		if err != nil {
			return err
		}
		if !query.Has("life") {
			return h.roles.Admit(r.Context(), name, rank, "")
		}
		text, err := one(query, "life")
		if err != nil {
			return err
		}
		of, life, err := readLife(text, name)
		if err == nil && of != rank {
			err = badRequest(fmt.Errorf("query worker=%d: the life is of rank %d", rank, of))
		}
		if err != nil {
			return err
		}
		return h.roles.Admit(r.Context(), name, rank, life)
	})
}

// worker returns the rank that the query names as worker; role.NoRank without one.
func worker(query url.Values) (int, error) {
	if !query.Has("worker") {
		return role.NoRank, nil
	}
	text, err := one(query, "worker")
	if err != nil {
		return 0, err
	}
	rank, err := strconv.Atoi(text)
	if err != nil || rank < 0 {
		return 0, badRequest(fmt.Errorf("query worker=%q: want a rank, from 0", text))
	}
	return rank, nil
}

// status answers {"status":"ok"} or what do could not do.
func (h handlers) status(w http.ResponseWriter, r *http.Request, do func(role.Name, url.Values) error) {
	h.answer(w, r, func(name role.Name, query url.Values) (int, any, error) {
		return http.StatusOK, StatusAnswer{"ok"}, do(name, query)
	})
}

// answer finds the role and the query, calls do and writes what it returns. Do may take long: the
// server's limit on writing begins with the answer.
func (h handlers) answer(w http.ResponseWriter, r *http.Request, do func(role.Name, url.Values) (int, any, error)) {
	name, known := chi.URLParam(r, "role"), h.roles.Known()
	if !slices.Contains(known, role.Name(name)) {
		WriteProblem(w, &UnknownError{Name: name, Known: known})
		return
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		WriteProblem(w, badRequest(fmt.Errorf("read query: %w", err)))
		return
	}
	// A writer without deadlines has no limit to lift.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
	status, body, err := do(role.Name(name), query)
	if err != nil {
		WriteProblem(w, err)
		return
	}
	WriteJSON(w, status, body)
}

// ParseStep reads a step: a decimal integer from 0 to 2^63-1, digits only.
func ParseStep(s string) (int64, error) {
	if s == "" || strings.Trim(s, "0123456789") != "" {
		return 0, fmt.Errorf("step %q: want a decimal integer, not negative", s)
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("step %q: larger than 63 bits", s)
	}
	return n, nil
}

// speaker returns whose word the request is: from the path of a life, or from rank and life in the
// query, else rank 0 of the current life.
func speaker(r *http.Request, name role.Name, query url.Values) (rank int, life string, err error) {
	if chi.URLParam(r, "uid") != "" {
		var part [5]string
		for i, key := range []string{"uid", "role", "inc", "rank", "attempt"} {
			part[i] = chi.URLParam(r, key)
		}
		return readLife(strings.Join(part[:], "/"), name)
	}
	hasRank := query.Has("rank")
	if hasRank {
		text, err := one(query, "rank")
		if err != nil {
			return 0, "", err
		}
		if rank, err = strconv.Atoi(text); err != nil || rank < 0 {
			return 0, "", badRequest(fmt.Errorf("query rank=%q: want a rank, from 0", text))
		}
	}
	if !query.Has("life") {
		return rank, "", nil
	}
	text, err := one(query, "life")
	if err != nil {
		return 0, "", err
	}
	of, life, err := readLife(text, name)
	if err == nil && hasRank && of != rank {
		err = badRequest(fmt.Errorf("query rank=%d: the life is of rank %d", rank, of))
	}
	return of, life, err
}

func readLife(text string, name role.Name) (rank int, life string, err error) {
	l, err := role.ParseLife(text)
	switch {
	case err != nil:
		return 0, "", badRequest(err)
	case l.Role != name:
		return 0, "", badRequest(fmt.Errorf("life %q: is not of role %s", text, name))
	case l.Rank == role.NoRank:
		return 0, "", badRequest(fmt.Errorf("life %q: is not of a worker", text))
	}
	return l.Rank, l.String(), nil
}

// readReport reads the body: {"error","fatal"} as application/json, anything else as plain text. An
// empty report still says that something failed.
func readReport(w http.ResponseWriter, r *http.Request) (Report, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBody))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return Report{}, NewProblem(http.StatusRequestEntityTooLarge, fmt.Sprintf("read report: more than %d bytes", MaxBody))
	}
	if err != nil {
		return Report{}, badRequest(fmt.Errorf("read report: %w", err))
	}
	report := Report{Text: string(body)}
	// An unreadable media type is text, as an absent one is.
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind == "application/json" {
		var in ReportBody
		if err := json.Unmarshal(body, &in); err != nil {
			return Report{}, badRequest(fmt.Errorf("read report: %w", err))
		}
		report = Report{Text: in.Error, Fatal: in.Fatal}
	}
	report.Text = strings.TrimSpace(strings.ToValidUTF8(report.Text, "�"))
	if report.Text == "" {
		report.Text = "reported without a text"
	}
	return report, nil
}

// one returns the value of a key that must stand in the query exactly once.
func one(query url.Values, key string) (string, error) {
	if n := len(query[key]); n != 1 {
		return "", badRequest(fmt.Errorf("query %s: want it once, have it %d times", key, n))
	}
	return query.Get(key), nil
}

func badRequest(err error) *Problem { return NewProblem(http.StatusBadRequest, err.Error()) }
