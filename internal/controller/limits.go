package controller

import (
	"errors"
	"fmt"
	"runtime"

	"vigil/internal/job"
	"vigil/internal/proc"
	"vigil/internal/restart/engine"
	"vigil/internal/wire/crowd"
	"vigil/internal/wire/rpc"
)

// What a controller and a service need of a machine at least, by measuring: for themselves, and for each service that
// a controller has, or worker that a service has.
const (
	ownFiles     = 24 // log, journal, locks, sockets, and what is open for a moment
	serviceFiles = 6  // pidfd, two connections, the lease of a port
	workerFiles  = 10 // two pipes with their logs, notify socket, pidfd, and both ends of the pipes at a start
	leastClients = 8  // connections of clients

	serviceMemory = 24 << 20 // bytes
	ownMemory     = 32 << 20
	leastAddress  = 1536 << 20 // bytes of address space, which Go's runtime reserves and does not use
)

// The bounds of what clients may hold, where descriptors abound.
const (
	mostConnections = 1024
	mostStreams     = 256
)

// needs is what a job needs of this machine's limits.
type needs struct {
	services     int // of the job
	files        int // of the controller
	serviceFiles int // of its largest service
	tasks        int // processes and threads, beside those of the controller that run already
	memory       int64
}

// needsOf adds up what a job needs.
func needsOf(o *Options) needs {
	nodes := max(o.FakeNodes, 1)
	n := needs{files: ownFiles}
	perProcess := 6 + min(runtime.GOMAXPROCS(0), 16) // threads
	for i := range o.Job.Roles {
		r := &o.Job.Roles[i]
		services := min(nodes, r.Workers)
		n.services += services
		n.files += services*serviceFiles + autoPorts(r)*r.Workers + r.Workers*r.Resources.GPUs
		n.serviceFiles = max(n.serviceFiles, ownFiles+workerFiles*((r.Workers+services-1)/services))
		n.tasks += services*(perProcess+2) + 2*r.Workers
	}
	if of, err := selectOutput(o.Job, o.Tee); err == nil && o.Output != nil {
		for i := range o.Job.Roles {
			for rank := range o.Job.Roles[i].Workers {
				if of.has(o.Job.Roles[i].Name, rank) {
					n.files += 2
				}
			}
		}
	}
	n.tasks += 4
	n.memory = ownMemory + int64(n.services)*serviceMemory
	return n
}

func autoPorts(r *job.Role) int {
	n := 0
	for _, p := range r.Ports {
		if p.Number == 0 {
			n++
		}
	}
	return n
}

// check says which limits are known to be too low before anything is started, with the number that is needed.
func (n needs) check() error {
	var wrong []error
	if limit, want := proc.FileLimit(), max(n.files, n.serviceFiles)+leastClients+heldBack(0); limit < want {
		wrong = append(wrong, fmt.Errorf("ulimit -n %d: this job needs %d open files (its controller %d, its largest service %d, and %d for clients and in reserve): raise the hard limit (ulimit -Hn) to %d or more",
			limit, want, n.files, n.serviceFiles, leastClients+heldBack(0), want))
	}
	if limit, is := proc.AddressLimit(); is && limit < leastAddress {
		wrong = append(wrong, fmt.Errorf("ulimit -v %d: a controller and its services need %d KiB of address space each, most of which is only reserved: raise it, or bound memory by a cgroup", limit>>10, leastAddress>>10))
	}
	if limit, file := proc.MemoryLimit(); limit > 0 && limit < n.memory {
		wrong = append(wrong, fmt.Errorf("%s allows %d MiB: the controller and %d services need %d MiB, and the workers theirs", file, limit>>20, n.services, n.memory>>20))
	}
	return errors.Join(wrong...)
}

// checkTasks says whether as many processes and threads can be made as the job needs at least.
func (n needs) checkTasks() error {
	room, limit, known := proc.ProcessRoom()
	if !known || room >= n.tasks {
		return nil
	}
	return fmt.Errorf("this job needs %d processes and threads more, and %d can be made: %s; raise it by %d or more", n.tasks, max(room, 0), limit, n.tasks-room)
}

// heldBack is how many of n descriptors are held back for what must be started.
func heldBack(limit int) int { return min(max(limit/16, 8), 64) }

// clients is what the clients of the HTTP interface may hold.
func (n needs) clients() (connections int, streams *crowd.Streams) {
	limit := proc.FileLimit()
	connections = min(max(limit-n.files-heldBack(limit), leastClients), mostConnections)
	why := ""
	if connections < mostConnections {
		why = fmt.Sprintf("ulimit -n %d of the controller allows %d connections, half of them streams", limit, connections)
	}
	return connections, &crowd.Streams{Most: min(connections/2, mostStreams), Why: why}
}

// callers is how many connections services, and clients of the older protocol, may have to the controller's socket.
func (n needs) callers() int { return 2*n.services + 64 }

// lacking returns err as what the engine waits for, if it says that a limit of the machine was met.
func lacking(err error) error {
	if order := new(rpc.OrderError); errors.As(err, &order) && order.Lack != "" {
		return &engine.LackError{Limit: order.Lack, Err: err}
	}
	if lack := proc.LackOf(err); lack != nil {
		return &engine.LackError{Limit: lack.Limit, Err: err}
	}
	return err
}
