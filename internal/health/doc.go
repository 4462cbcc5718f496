// Package health judges who is well.
//
// Three parts stand on each other. Table is the judgement: a plain value whose methods take the time
// as an argument, so that ten minutes of silence are one line of a test. Store puts one lock around
// it and is what services' words are given to. Checker ticks once a second for silence and wakes at
// once for a failure, sweeps the store and hands what was found to a callback.
//
// A role has a record with the fields of the health manager it comes from (healthy, error,
// last_heartbeat, current_step, task_running, restart_count) and one entry per rank. Every word
// carries the worker life it was said in; word of another life is dropped and counted. A verdict is
// given once per worker life. What was learned of a role's rhythm is kept over its lives.
//
// The package doubts itself first: time in which nobody swept is credited to everybody.
package health
