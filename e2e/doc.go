// Package e2e shows what a user sees: the real programs, real workers, real signals. Each script in
// testdata/script is a story; the commands that it may use beyond testscript's own are in
// commands_test.go, what a worker can be told to do is in worker/main.go. Nothing here sleeps: every
// wait is for something, with a deadline.
package e2e
