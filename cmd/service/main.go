// Command service runs and watches the workers of one role on one machine, for a controller. The
// controller's own program can do the same: controller service.
package main

import (
	"os"

	"vigil/internal/service"
)

func main() { os.Exit(service.Main(os.Args[1:], os.Stderr)) }
