#!/bin/sh
# Installs what the tests need beyond Go, as root on Debian or Ubuntu. Elsewhere it says what is missing; the
# tests that need it then skip and say so.
set -eu

missing=
need() { # need COMMAND PACKAGE
	command -v "$1" >/dev/null 2>&1 || missing="$missing $2"
}
need python3 python3
need pip3 "python3-pip python3-venv python3-setuptools python3-wheel"
need prometheus prometheus
need curl curl
need ps procps
need mkfs.ext4 e2fsprogs

# A real training is run with PyTorch: that of the machine if it has one, else Debian's.
for python in "${TORCH_PYTHON:-python3}" python3 /usr/bin/python3; do
	"$python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)' 2>/dev/null && torch=yes && break
done
[ -n "${torch:-}" ] || missing="$missing python3-torch"

[ -n "$missing" ] || exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
	echo "installing for the tests:$missing"
	export DEBIAN_FRONTEND=noninteractive
	# A package's daemon is not wanted: the tests start their own.
	if [ ! -e /usr/sbin/policy-rc.d ]; then
		printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
		chmod +x /usr/sbin/policy-rc.d
		trap 'rm -f /usr/sbin/policy-rc.d' EXIT
	fi
	apt-get update -qq || echo "could not update the list of packages"
	for package in $missing; do
		apt-get install -y -qq --no-install-recommends "$package" >/dev/null || echo "could not install: $package (the tests that need it skip)"
	done
else
	echo "not installed:$missing (the tests that need them skip)"
fi
