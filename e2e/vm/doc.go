// Package vm shows what only a machine of its own can show: cgroup v2 alone, systemd as pid 1 with the unit that we ship, an
// ordinary user, a reboot, and a power cut while the controller writes its journal. `make test-vm` makes an image and sets
// VIGIL_VM to its folder; without that every test is skipped. The host's half begins the machine, asks the guest's half for
// one test after the other by a virtio port, cuts the power by killing qemu, and begins it again on the same disk.
package vm
