package vm

import (
	"os"
	"testing"
)

// image is the folder that tools/vm.sh has made: root.img, vmlinuz and initrd.img.
var image = os.Getenv("VIGIL_VM")

// onHost skips a test where no machine is to be started, and in the guest.
func onHost(t *testing.T) {
	t.Helper()
	if image == "" || inGuest {
		t.Skip("SKIPPED, NOTHING IS SHOWN: this wants a virtual machine: make test-vm")
	}
}

// inGuest says that this is the guest's half, begun by its agent.
var inGuest = os.Getenv("VIGIL_VM_GUEST") != ""

// guest skips a test of the guest's half on the host, and returns what the host wants it to know.
func guest(t *testing.T) string {
	t.Helper()
	if !inGuest {
		t.Skip("the guest's half of a test: make test-vm")
	}
	return os.Getenv("VIGIL_VM_KNOWS")
}
