// Package takeover kills the controller: at every write of its journal, at random instants, while the disk
// is full and while the clock jumps; and looks whether the next controller goes on with the job as if
// nothing had been. VIGIL_TAKEOVER=all takes every write instead of a sample, VIGIL_TAKEOVER_RANDOM=N so
// many random instants, and VIGIL_TAKEOVER_SEED repeats what a seed has chosen. VIGIL_AWAY is for how long one is away while its workers go on.
package takeover
