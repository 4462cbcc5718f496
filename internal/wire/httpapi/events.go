package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"

	"vigil/internal/event"
	"vigil/internal/wire/roleapi"
)

const (
	eventStream = "text/event-stream"
	// keepAlive is how often a quiet stream says something, so that a client that has gone is found
	// and what stands between us does not cut the line.
	keepAlive = 15 * time.Second
	// sendTime is how long a client may take to take what is sent before it is cut off; it comes back
	// with its cursor.
	sendTime = 10 * time.Second
	// retryAfter is in how many seconds a client may ask again that was refused because too many streams are open.
	retryAfter = "5"
)

type eventsInput struct {
	After       uint64 `query:"after" doc:"The cursor: only events with a number above it."`
	Limit       int    `query:"limit" default:"1000" minimum:"1" maximum:"10000" doc:"How many at most; a stream has no limit."`
	LastEventID uint64 `header:"Last-Event-ID" doc:"The cursor of a stream that is resumed; it goes before after."`
}

// Missed is what a stream says when events after its cursor are no longer kept.
type Missed struct {
	Missed uint64 `json:"missed" doc:"How many."`
}

func (e endpoints) registerEvents(h huma.API) {
	schemas := h.OpenAPI().Components.Schemas
	op := get("events", "/api/v1/events", "What happened, as JSON, or with Accept: text/event-stream as server-sent events")
	op.Description = "A stream sends every event as a message whose id is its number and whose data is the event as JSON. " +
		"A message of the type missed, with data {\"missed\":N}, says that N events after the cursor are no longer kept. " +
		"A cursor from before the numbering began anew is taken as 0. " +
		"As many streams are open at once as the open-files limit of the controller allows; a further one is answered 503 with Retry-After."
	op.Responses = map[string]*huma.Response{
		"200": {
			Description: "OK",
			Content: map[string]*huma.MediaType{
				"application/json": {Schema: schemas.Schema(typeOf[EventList](), true, "EventList")},
				eventStream:        {Schema: &huma.Schema{Type: huma.TypeString}},
			},
		},
		"default": problemResponse(),
	}
	huma.Register(h, op, func(_ context.Context, in *eventsInput) (*huma.StreamResponse, error) {
		return &huma.StreamResponse{Body: func(ctx huma.Context) {
			r, w := humachi.Unwrap(ctx)
			if !accepts(r.Header.Get("Accept"), eventStream) {
				roleapi.WriteJSON(w, http.StatusOK, e.eventList(in.After, in.Limit))
				return
			}
			after := in.After
			if in.LastEventID != 0 {
				after = in.LastEventID
			}
			leave, err := e.streams.Enter()
			if err != nil {
				w.Header().Set("Retry-After", retryAfter)
				roleapi.WriteProblem(w, roleapi.NewProblem(http.StatusServiceUnavailable, err.Error()))
				return
			}
			defer leave()
			e.stream(r.Context(), w, after)
		}}, nil
	})
}

func (e endpoints) eventList(after uint64, limit int) EventList {
	events, _, after := e.since(after)
	out := EventList{Events: list(events[:min(limit, len(events))]), Next: after, Missed: missed(after, events)}
	if n := len(out.Events); n > 0 {
		out.Next = out.Events[n-1].Seq
	}
	return out
}

// since returns what comes after the cursor, and the cursor: 0 instead of one that lies beyond
// everything there is, because the numbering has begun anew since it was given out.
func (e endpoints) since(after uint64) ([]event.Event, <-chan struct{}, uint64) {
	events, changed := e.controller.Since(after)
	if len(events) > 0 || after == 0 {
		return events, changed, after
	}
	all, changed := e.controller.Since(0)
	if n := len(all); n > 0 && all[n-1].Seq >= after {
		// Nothing is new, or something came between the two questions.
		for len(all) > 0 && all[0].Seq <= after {
			all = all[1:]
		}
		return all, changed, after
	}
	return all, changed, 0
}

// missed says how many events lie between the cursor and the first one that is kept.
func missed(after uint64, events []event.Event) uint64 {
	if len(events) == 0 || events[0].Seq <= after {
		return 0
	}
	return events[0].Seq - after - 1
}

// stream sends events until the client goes away, does not keep up, or the API is closed.
func (e endpoints) stream(ctx context.Context, w http.ResponseWriter, after uint64) {
	w.Header().Set("Content-Type", eventStream)
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Accel-Buffering", "no") // nginx would hold events back
	w.WriteHeader(http.StatusOK)
	tick := time.NewTicker(keepAlive)
	defer tick.Stop()
	if send(w, "retry: 1000\n\n") != nil {
		return
	}
	events, changed, after := e.since(after)
	for {
		if n := len(events); n > 0 {
			text, err := messages(after, events)
			if err != nil || send(w, text) != nil {
				return
			}
			after = events[n-1].Seq
		}
		select {
		case <-ctx.Done():
			return
		case <-e.closing:
			return
		case <-tick.C:
			if send(w, ": still here\n\n") != nil {
				return
			}
		case <-changed:
		}
		events, changed = e.controller.Since(after)
	}
}

// messages writes events as server-sent events (HTML standard, section 9.2.5).
func messages(after uint64, events []event.Event) (string, error) {
	var b strings.Builder
	if n := missed(after, events); n > 0 {
		fmt.Fprintf(&b, "event: missed\ndata: {\"missed\":%d}\n\n", n)
	}
	for _, ev := range events {
		data, err := json.Marshal(ev)
		if err != nil {
			return "", fmt.Errorf("encode event %d: %w", ev.Seq, err)
		}
		fmt.Fprintf(&b, "id: %d\ndata: %s\n\n", ev.Seq, data)
	}
	return b.String(), nil
}

func send(w http.ResponseWriter, text string) error {
	control := http.NewResponseController(w)
	// A writer without deadlines has no limit to move.
	_ = control.SetWriteDeadline(time.Now().Add(sendTime))
	if _, err := w.Write([]byte(text)); err != nil {
		return err
	}
	return control.Flush()
}

func accepts(header, want string) bool {
	for part := range strings.SplitSeq(header, ",") {
		if kind, _, err := mime.ParseMediaType(part); err == nil && kind == want {
			return true
		}
	}
	return false
}
