package service

import (
	"fmt"
	"maps"
	"regexp"
	"slices"

	"vigil/internal/proc"
)

// mostHeldPorts is how many lives in a row may end for nothing because their port is held by earlier connections. The
// kernel lets go of it within a minute, which is waited for after the first.
const mostHeldPorts = 2

// inUse is how programs say that they could not bind a port: EADDRINUSE (98) in the words of the C library and those of
// most languages.
var inUse = regexp.MustCompile(`(?i)address (is )?already in use|EADDRINUSE|address in use|\berrno 98\b|\bos error 98\b`)

// lingeringOf returns which of the ports earlier connections hold now, with their state.
func lingeringOf(ports map[string]uint32) map[string]string {
	held := map[string]string{}
	for name, port := range ports {
		if state := proc.Lingering(int(port)); state != "" {
			held[name] = state
		}
	}
	return held
}

// heldPort says which port a worker could not bind because the kernel still keeps earlier connections there: it was so
// when the worker was started, and what the worker says of its failure is that an address is in use. A program that binds
// such a port (SO_REUSEADDR, as most servers do) never comes here. Service.mu is held.
func (s *Service) heldPort(w *worker, said string) string {
	if len(w.lingering) == 0 || w.stopping || !inUse.MatchString(said) {
		return ""
	}
	if s.heldPorts >= mostHeldPorts && !w.heldPort {
		return ""
	}
	if !w.heldPort {
		w.heldPort = true
		s.heldPorts++
	}
	name := slices.Min(slices.Collect(maps.Keys(w.lingering)))
	return fmt.Sprintf("its port %d (%s) is held by earlier connections (%s), nobody listens there", w.ports[name], name, w.lingering[name])
}
