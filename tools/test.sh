#!/bin/sh
# Everything that must pass, in parts; it ends with the first that fails. At the end it shows the package
# lines of go test once more, the slowest last, after how long all of them took together; where something
# failed, what did comes after them.
set -u
cd "$(dirname "$0")/.."
go=${GO:-go}

work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

part() { # COMMAND ARGS...
	{
		"$@" 2>&1
		echo $? >"$work/status"
	} | tee -a "$work/said"
	status=$(cat "$work/status")
	return "$status"
}

began=$(date +%s)
part "$go" test -timeout 20m ./... &&
	part "$go" test -timeout 20m -race ./internal/... &&
	part sh tools/programs.sh present
took=$(($(date +%s) - began))

lines=$(grep -E "^(ok|FAIL|---)[[:space:]]+[^[:space:]]+[[:space:]]+[0-9.]+s" "$work/said")
printf '\n# %d min %d s; the slowest packages (%d were run), and what failed:\n' $((took / 60)) $((took % 60)) "$(printf '%s\n' "$lines" | grep -c .)"
printf '%s\n' "$lines" | awk -F '\t' 'NF >= 3 { t = $3; sub(/s.*/, "", t); printf "%012.3f\t%s\n", t, $0 }' | sort | cut -f 2- | tail -n 12
grep -E "^(FAIL|--- FAIL|panic:)" "$work/said"
exit "$status"
