// Package warm starts workers that are Python programs by forking them from a process that has imported their
// modules already, which takes hundredths of a second where an import of PyTorch takes seconds.
//
// A Server belongs to one role of one service. Its fork server is a Python process with the role's environment,
// running the files *.py beside this one, which are embedded: nothing has to be installed. Server.Fork gives a
// proc.Process that cannot be told from one that proc.Keeper.Start made, but for what docs/guides/warm-start.md
// lists: a child of the service, with a session, a cgroup leaf, an environment and streams of its own, and the
// program as __main__.
//
// Nobody depends on it. Whatever speaks against a fork, an import that fails, a device that is open, a thread
// that runs, is told once by Options.Notice, and every error of Fork means: start the worker as ever. An error
// comes before a line of the program has run.
package warm
