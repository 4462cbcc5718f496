// Package warm restarts workers that are forked from a fork server, and breaks the fork server: with the real controller,
// a worker of a few lines, and a PyTorch training. VIGIL_WARM=N restarts the training so many times, and the small
// worker ten times as often.
package warm
