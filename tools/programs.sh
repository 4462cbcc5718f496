#!/bin/sh
# Real trainings, with the frameworks that people use: a virtual environment with what tools/programs.txt pins
# is made in the user's cache, and kept until that file changes, and another one with tools/agents.txt; then the tests that want frameworks run with it.
#
#	programs.sh          make it where there is none, and run the tests
#	programs.sh present  run the tests if it is there; else say so and end well
set -eu
cd "$(dirname "$0")/.."

pins=$PWD/tools/programs.txt
agents=$PWD/tools/agents.txt
home=${XDG_CACHE_HOME:-$HOME/.cache}/vigil/programs
python=$home/venv/bin/python

fail() {
	echo "programs: $*" >&2
	exit 1
}

made() { # Whole, and of these pins: they are copied last.
	cmp -s "$pins" "$home/venv/pins.txt" && "$python" -c '' 2>/dev/null
}

maker() { # The first Python that the pinned versions exist for.
	for name in ${PYTHON:-} python3 python3.13 python3.12 python3.11 /usr/bin/python3; do
		"$name" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && echo "$name" && return
	done
	fail "no Python 3.11, 3.12 or 3.13 with venv is here (PYTHON=... names one)"
}

make_venv() {
	from=$(maker)
	mkdir -p "$home"
	free=$(df -Pk "$home" | awk 'NR == 2 { print int($4 / 1048576) }')
	[ "$free" -ge 8 ] || fail "8 GB are needed in $home, $free are free"
	rm -rf "$home/venv"
	echo "programs: installing torch, transformers, accelerate and lightning in $home/venv; some minutes and 5 GB"
	"$from" -m venv "$home/venv" || fail "$from cannot make a virtual environment"
	if ! "$python" -m pip install --quiet --no-cache-dir --no-compile --only-binary :all: -r "$pins" >"$home/pip.log" 2>&1; then
		fail "not installed: $(grep '^ERROR' "$home/pip.log" | tail -n 1) (all of it: $home/pip.log)"
	fi
	# Compiles what the tests import, and nothing else.
	"$python" -c 'import accelerate, pytorch_lightning, torch, transformers; from transformers import Trainer' 2>"$home/pip.log" ||
		fail "not importable: $(tail -n 1 "$home/pip.log")"
	cp "$pins" "$home/venv/pins.txt"
	echo "programs: $(du -sh "$home/venv" | cut -f 1) in $home/venv"
}

# Tracing agents change every Python that they are installed for: they have an environment of their own.
make_agents() {
	cmp -s "$agents" "$home/agents/pins.txt" && "$home/agents/bin/python" -c '' 2>/dev/null && return
	from=$(maker)
	rm -rf "$home/agents"
	echo "programs: installing OpenTelemetry, ddtrace and coverage in $home/agents"
	"$from" -m venv "$home/agents" || fail "$from cannot make a virtual environment"
	if ! "$home/agents/bin/python" -m pip install --quiet --no-cache-dir --only-binary :all: -r "$agents" >"$home/pip.log" 2>&1; then
		fail "not installed: $(grep '^ERROR' "$home/pip.log" | tail -n 1) (all of it: $home/pip.log)"
	fi
	for folder in "$home"/agents/lib/python3*/site-packages; do
		echo 'import coverage; coverage.process_startup()' >"$folder/coverage_start.pth"
	done
	cp "$agents" "$home/agents/pins.txt"
}

case ${1:-} in
present) made || { echo "programs: real Hugging Face and Lightning trainings are not run: no environment for them is here (make programs)"; exit 0; } ;;
*)
	made || make_venv
	make_agents
	;;
esac
[ ! -f "$home/agents/pins.txt" ] || export VIGIL_TEST_AGENTS="$home/agents/bin"

export VIGIL_TEST_PYTHON="$python" TORCH_PYTHON="$python" HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1
${GO:-go} test -timeout 20m -count=1 -run 'TestScripts/(huggingface|lightning|agents)$' ./e2e
[ "${1:-}" = present ] || ${GO:-go} test -timeout 20m -count=1 ./e2e/programs
cd python && exec "$python" -m unittest tests.test_integrations
