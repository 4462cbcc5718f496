package service

import (
	"cmp"
	"slices"
	"time"

	"vigil/internal/evidence"
	"vigil/internal/role"
)

// kernelEvery is how often the kernel's log is looked at while workers with devices run.
const kernelEvery = 250 * time.Millisecond

// kernelWatch is what is known of the kernel's log and of the workers for whom it is read. It is owned
// by followKernel.
type kernelWatch struct {
	log  *evidence.Follower // nil: not opened
	off  bool               // it cannot be read
	seen map[*worker]*exposed
}

// exposed is one worker with devices.
type exposed struct {
	since     time.Duration // boot, from which on Xids are its own
	addresses []string      // PCI addresses of its own devices, as far as they are known
	told      bool
}

// followKernel reads the kernel's log while workers with devices run, and reports one whose device is
// ill at once: it would only fall silent, and its peers with it. It ends when closed is closed.
func (s *Service) followKernel(closed <-chan struct{}) {
	s.running.Go(func() {
		tick := time.NewTicker(kernelEvery)
		defer tick.Stop()
		k := kernelWatch{seen: map[*worker]*exposed{}}
		for !k.off {
			select {
			case <-closed:
				k.off = true
			case <-tick.C:
				s.lookAtKernel(&k)
			}
		}
		if k.log != nil {
			k.log.Close()
		}
	})
}

// lookAtKernel takes in what the driver has said since the last look.
func (s *Service) lookAtKernel(k *kernelWatch) {
	running := s.withDevices()
	now := map[*worker]*exposed{}
	for _, w := range running {
		now[w] = k.seen[w]
		if now[w] == nil {
			now[w] = &exposed{since: evidence.SinceBoot() - kernelEvery, addresses: evidence.Addresses("", w.gpus)}
		}
	}
	k.seen = now
	if k.log == nil {
		if len(running) == 0 {
			return
		}
		var err error
		if k.log, err = s.taker().Follow(); err != nil {
			s.log.Debug("ill devices are noticed at a worker's end only", "err", err)
			k.off = true
			return
		}
	}
	for _, x := range k.log.Next() { // also when nobody runs: it is not the next life's
		if !x.Ill() {
			continue
		}
		if i := slices.IndexFunc(running, func(w *worker) bool { return s.hits(x, w, now[w]) }); i >= 0 {
			s.tellIll(running[i], now[running[i]], x)
		}
	}
}

// withDevices returns the workers that run and have devices, by rank.
func (s *Service) withDevices() []*worker {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*worker
	for _, w := range s.lives {
		if w.devices > 0 && w.running() && s.listensTo(w) {
			out = append(out, w)
		}
	}
	slices.SortFunc(out, func(a, b *worker) int { return cmp.Compare(a.life.Rank, b.life.Rank) })
	return out
}

// hits reports whether an Xid is about a process of the worker or about a device of its own.
func (s *Service) hits(x evidence.Xid, w *worker, e *exposed) bool {
	if x.At < e.since {
		return false
	}
	if !x.Contained() && slices.Contains(e.addresses, x.Device) {
		return true
	}
	return x.PID != 0 && slices.ContainsFunc(s.subjects([]*worker{w})[0].Processes, x.Names)
}

// tellIll tells the controller that a worker's device is ill, once.
func (s *Service) tellIll(w *worker, e *exposed, x evidence.Xid) {
	if e.told {
		return
	}
	e.told = true
	s.log.Warn("a worker's device is ill", "rank", w.life.Rank, "says", x.Line)
	at := time.Now().Add(-max(evidence.SinceBoot()-x.At, 0))
	s.change(func(out *words) {
		if s.listensTo(w) {
			out.failure(role.Failure{Life: w.life, Cause: role.Hardware, Detail: x.Line, At: at, Log: w.files.stderr})
		}
	})
}
