// Package scenario tells fault stories in fake time: the real health store, checker, policy and
// repair loop, with services and workers that are played. Each file under testdata is one story: what
// is done, and the log that a user could read afterwards. The package has tests only; run them with
// -update to write the logs anew, and read the difference. README.md lists what a story can say.
package scenario
