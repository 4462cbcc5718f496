// Package proc starts, watches and ends processes on this machine, and proves that nothing of them is
// left. The controller uses it for services, a service uses it for workers.
//
// A program makes one Keeper. Keeper.Start gives a Process, which is a session of its own and, where
// the machine lets us, sits in a cgroup leaf of its own. Keeper.AdoptChild makes one of a child that a fork
// server of ours has forked. What a process starts, and what those start,
// is its Tree. A tree is known by four signs, because none of them holds everywhere: the cgroup leaf,
// the sessions that we made, descent (the keeper is a child sub-reaper, so orphans of our processes
// become our children), and as the last resort the mark VIGIL_LIFE in the environment.
//
// Keeper.Stop asks first and kills later; Keeper.Clear kills. Both end with proof: they look until
// nothing of the tree is left or say who is. A signal goes only to a process whose pid and start time
// were compared right before, through its pidfd where the kernel has them.
//
// What killed processes leave in /dev/shm is followed and removed by Shm, and by ClearShm for a program
// that has died.
//
// The package also holds what programs of ours share on a machine: the runtime directory with its
// sockets (Dir), locks (Lock), leased ports (Ports), and the last lines of a log (Tail).
package proc
