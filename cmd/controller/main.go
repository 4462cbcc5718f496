// The controller starts a job's roles, watches whether each is alive and gets on, and repairs what
// breaks. Installed under the name vigil it is the same program.
package main

import (
	"os"

	"vigil/internal/command"
)

func main() {
	os.Exit(command.Main(os.Args, os.Environ(), os.Stdout, os.Stderr))
}
