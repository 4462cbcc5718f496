#!/bin/sh
# Installs what the tests need beyond Go, as root on Debian or Ubuntu. Elsewhere it says what is missing; the
# tests that need it then skip and say so.
set -eu

missing=
need() { # need COMMAND PACKAGE
	command -v "$1" >/dev/null 2>&1 || missing="$missing $2"
}
need python3 python3
need prometheus prometheus
need curl curl
need ps procps

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
	apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing >/dev/null || echo "could not install:$missing (the tests that need them skip)"
else
	echo "not installed:$missing (the tests that need them skip)"
fi
