#!/bin/sh
# whole_suite.sh PYTHON: every test. First those that measure a lab, alone on the machine; then the
# rest in two lanes side by side, because both wait for kernels and clocks more than they compute.
# What the second lane says is printed when it has ended. Exit status 1 when any test failed.
set -u
python=$1 failed=0

"$python" -m pytest tests/e2e || failed=1

said=$(mktemp) || exit 1
"$python" -m pytest tests/netns >"$said" 2>&1 &
lane=$!
trap 'kill $lane 2>/dev/null; wait $lane; cat "$said"; rm -f "$said"' EXIT
trap 'exit 1' INT TERM HUP
"$python" -m pytest tests/contract tests/property tests/fuzz tests/unit || failed=1
wait $lane || failed=1
exit $failed
