package controller

import (
	"log/slog"
	"sync"
	"time"

	"vigil/internal/event"
	"vigil/internal/wire/rpc"
)

// maxSaidDrops bounds how many different texts about dropped words are said.
const maxSaidDrops = 100

// drops counts the words of services that were dropped, as events, and says each kind of them once.
type drops struct {
	log    *slog.Logger
	record func(event.Event)

	mu   sync.Mutex
	said map[string]bool
}

func newDrops(log *slog.Logger, record func(event.Event)) *drops {
	return &drops{log: log, record: record, said: map[string]bool{}}
}

// refused returns what counts the callers that are turned away at the socket for services, and says each kind of them
// once.
func (c *Controller) refused() func(why string) {
	var mu sync.Mutex
	said := map[string]bool{}
	return func(why string) {
		c.metrics.Refused()
		mu.Lock()
		fresh := !said[why] && len(said) < maxSaidDrops
		if fresh {
			said[why] = true
		}
		mu.Unlock()
		if fresh {
			c.log.Warn("the controller refuses "+why, "more", "only counted, in vigil_refused_callers_total")
		}
	}
}

// hear takes in that a word of a service was dropped. It may be called from any goroutine.
func (d *drops) hear(id rpc.ServiceID, what string) {
	e := event.New(time.Now(), event.Stale)
	e.Role, e.Detail = id.Role, id.String()+": "+what
	d.record(e)
	d.mu.Lock()
	fresh := !d.said[e.Detail] && len(d.said) < maxSaidDrops
	if fresh {
		d.said[e.Detail] = true
	}
	d.mu.Unlock()
	if fresh {
		d.log.Warn("a word of service "+id.String()+" is dropped", "what", what)
	}
}
