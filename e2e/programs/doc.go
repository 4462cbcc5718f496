// Package programs runs what people bring: scripts that were written for torchrun, launchers that
// start the trainer themselves, and a real PyTorch DDP job, each under the real controller. Where
// PyTorch is missing, the tests that need it skip and say so.
package programs
