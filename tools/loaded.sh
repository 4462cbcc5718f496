#!/bin/sh
# Runs tests once beside busy loops, to find those that take load for a fault. The loops end with this
# script, however that ends.
#
#	loaded.sh              all parts, one after the other
#	loaded.sh NUMBER       one part; each is done within an hour on two cores
#	loaded.sh PACKAGE...   these packages
#
# LOADS is how many loops there are (30), LOOP the shell that they run in. The lines of go test say how long each package took.
set -u
cd "$(dirname "$0")/.."
go=${GO:-go}
loads=${LOADS:-30}

# The parts: what is slow, or starts many processes, has one of its own.
part() { # NUMBER
	case $1 in
	1) "$go" list ./internal/... . | grep -vE '/internal/(service|controller|warm|scenario|proc|wire/rpc|launcher/local)$' ;;
	2) echo ./internal/scenario ./internal/proc ./internal/wire/rpc ./internal/launcher/local ;;
	3) echo ./internal/service ./internal/controller ;;
	4) echo ./internal/warm ./e2e/warm ;;
	5) echo ./e2e ;;
	6) echo ./e2e/engines ./e2e/tinyrl ./examples/... ;;
	7) echo ./e2e/takeover ;;
	8) "$go" list ./bench/... ./deploy/... ./python/... ./e2e/programs ./e2e/soak 2>/dev/null ;;
	esac
}
last=8

pids=
end() {
	# shellcheck disable=SC2086 # a list
	[ -z "$pids" ] || kill $pids 2>/dev/null
	pids=
}
trap end EXIT
trap 'end; exit 130' INT
trap 'end; exit 143' TERM HUP

load() {
	i=0
	while [ "$i" -lt "$loads" ]; do
		# It looks now and again whether we are there: nobody may end it otherwise.
		"${LOOP:-/bin/sh}" -c 'while kill -0 "$0" 2>/dev/null; do i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; done' $$ &
		pids="$pids $!"
		i=$((i + 1))
	done
}

run() { # TITLE PACKAGE...
	title=$1
	shift
	echo "# $title, beside $loads busy loops"
	# shellcheck disable=SC2068 # packages have no blanks
	"$go" vet $@ >/dev/null 2>&1 # what it builds is built without them
	began=$(date +%s)
	load
	"$go" test -count=1 -timeout 60m $@
	status=$?
	end
	took=$(($(date +%s) - began))
	echo "# $title: $((took / 60)) min $((took % 60)) s"
	[ "$status" -eq 0 ] || failed=1
}

failed=0
case ${1:-} in
'')
	n=1
	while [ "$n" -le "$last" ]; do
		# shellcheck disable=SC2046 # packages have no blanks
		run "part $n of $last" $(part "$n")
		n=$((n + 1))
	done
	;;
[0-9]*)
	[ -n "$(part "$1")" ] || { echo "loaded: there are the parts 1 to $last" >&2; exit 2; }
	# shellcheck disable=SC2046
	run "part $1 of $last" $(part "$1")
	;;
*) run "$*" "$@" ;;
esac
exit "$failed"
