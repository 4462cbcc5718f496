// Package service is the program that runs and watches the workers of one role on one node.
//
// A service stands between its workers and the controller. Up go the workers' heartbeats, in batches,
// and their failures, at once; down come orders: run, stop, get and set the step. It decides nothing:
// when a worker fails the service says so and waits to be told what becomes of the others. Only when
// its controller has been gone for longer than it was allowed to does it act alone: it stops its
// workers in order and exits with ExitControllerLost.
//
//	options.go   what it is told at its start
//	main.go      flags, signals, exit status
//	service.go   the parts and how they are put together and taken apart
//	orders.go    what the controller tells it
//	run.go       starting the workers of one incarnation
//	stop.go      ending them, with proof
//	evidence.go  what is kept of them before that, and why one has ended
//	kernel.go    devices that the kernel's log calls ill while workers run
//	held.go      the devices that ended workers still hold
//	shm.go       the shared memory that they leave behind
//	env.go       the environment of one worker
//	worker.go    one worker life: its words, its end
//	output.go    what workers print: pipes that are read whatever becomes of the logs
//	outputlog.go the logs, behind the readers' backs
//	pattern.go   steps that are read from the output
//	iteration.go steps that are read from a checkpoint-iteration file
//	step.go      the role's step, and telling the workers a new one
//	probe.go     whether a worker is ready
//	http.go      the role's endpoints, and those of each worker life
//
// One lock guards the state; nothing waits while it is held. Orders that start or end workers take
// turns; asking for the step never waits for them.
package service
