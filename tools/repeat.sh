#!/bin/sh
# Runs the tests of one package again and again, and keeps what the failed runs said. For a failure that
# was seen once: its name and its log are what is missing to explain it.
#
#	repeat.sh PKG [RUN [N [JOBS]]] [-- TEST FLAGS]
#
# PKG is a package, RUN a regular expression as for go test -run, N how often (20), JOBS how many at a
# time (1). Every run has a folder of its own for temporary files; that of a failed one is kept, with its
# output in LOG/NUMBER.log. LOG is $REPEAT_LOG, else a new folder below the temporary directory.
# The exit status is 1 when a run failed.
set -u
fail() {
	echo "repeat: $*" >&2
	exit 2
}

[ $# -ge 1 ] || fail "want a package: repeat.sh PKG [RUN [N [JOBS]]] [-- TEST FLAGS]"
pkg=$1 run=. n=20 jobs=1
shift
[ $# -eq 0 ] || [ "$1" = -- ] || { run=$1; shift; }
[ $# -eq 0 ] || [ "$1" = -- ] || { n=$1; shift; }
[ $# -eq 0 ] || [ "$1" = -- ] || { jobs=$1; shift; }
[ $# -eq 0 ] || shift

top=$(cd "$(dirname "$0")/.." && pwd)
log=${REPEAT_LOG:-$(mktemp -d "${TMPDIR:-/tmp}/vigil-repeat-XXXXXX")}
mkdir -p "$log" || fail "no folder for the logs"
cd "$top" || fail "no $top"
dir=$(${GO:-go} list -f '{{.Dir}}' "$pkg") || fail "no package $pkg"
[ "$(printf '%s\n' "$dir" | wc -l)" -eq 1 ] || fail "$pkg is more than one package"
# shellcheck disable=SC2086 # RACE is a flag or nothing
${GO:-go} test ${RACE:+-race} -c -o "$log/test" "$pkg" || fail "$pkg does not build"

once() { # NUMBER FLAGS...
	i=$1
	shift
	mkdir -p "$log/$i.tmp"
	(cd "$dir" && TMPDIR="$log/$i.tmp" exec "$log/test" -test.run "$run" -test.v -test.timeout "${TIMEOUT:-20m}" "$@") >"$log/$i.log" 2>&1 &
	test=$!
	if wait "$test"; then
		chmod -R u+w "$log/$i.tmp" 2>/dev/null
		rm -rf "$log/$i.tmp" "$log/$i.log"
		echo ok >>"$log/passed"
	else
		echo "repeat: run $i failed: $log/$i.log"
		grep -E '^ *--- FAIL' "$log/$i.log"
		echo "$i" >>"$log/failed"
	fi
}

worker() { # FIRST FLAGS...: runs FIRST, FIRST+JOBS, ...
	at=$1
	shift
	trap 'kill "$test"; exit 1' TERM
	while [ "$at" -le "$n" ]; do
		once "$at" "$@"
		at=$((at + jobs))
	done
}

workers=
trap 'kill $workers; echo "repeat: ended early; what failed so far is in $log" >&2; exit 2' INT TERM
first=1
while [ "$first" -le "$jobs" ]; do
	worker "$first" "$@" &
	workers="$workers $!"
	first=$((first + 1))
done
wait
passed=$(wc -l <"$log/passed" 2>/dev/null || echo 0)
if [ -f "$log/failed" ]; then
	echo "repeat: $pkg $run: $passed of $n passed; the logs of the others are in $log"
	exit 1
fi
echo "repeat: $pkg $run: all $n passed"
rm -f "$log/test" "$log/passed"
[ -n "${REPEAT_LOG:-}" ] || rmdir "$log" 2>/dev/null || :
