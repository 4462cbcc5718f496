// Package controller is the composition root of the program that keeps a job alive. It puts the
// parts together (health, policy, engine, placement, launcher, wires) and takes them apart again in
// reverse order; it judges and decides nothing itself.
//
// Data goes one way round. Services say what happens over the wire (ears.go) to the health store;
// the checker sweeps it and hands failures to the engine; the engine decides and makes moves on the
// crew (crew.go), which are the services and their workers. What happened is recorded as events,
// which metrics, incidents and the HTTP interface (view.go) read.
package controller
