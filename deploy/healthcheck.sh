#!/bin/sh
# Healthy: what is asked for answers. Without anything asked for, that Python starts.
#
# TRUELOOP_HEALTH_URL       an address that has to answer with 2xx, of `trueloop serve` or `trueloop lab`
# TRUELOOP_HEALTH_STALL_S   seconds within which some run below TRUELOOP_RUNS (runs) has to write to its journal
set -eu

if [ -n "${TRUELOOP_HEALTH_URL:-}" ]; then
    exec python -c '
import sys, urllib.request
try:
    urllib.request.urlopen(sys.argv[1], timeout=5).close()
except OSError as error:
    sys.exit(f"{sys.argv[1]}: {error}")
' "$TRUELOOP_HEALTH_URL"
fi

if [ -n "${TRUELOOP_HEALTH_STALL_S:-}" ]; then
    exec python -c '
import pathlib, sys, time
journals = pathlib.Path(sys.argv[1]).glob("**/journal.jsonl")
age = time.time() - max((each.stat().st_mtime for each in journals), default=0.0)
sys.exit(f"no journal was written for {age:.0f} s" if age > float(sys.argv[2]) else 0)
' "${TRUELOOP_RUNS:-runs}" "$TRUELOOP_HEALTH_STALL_S"
fi

exec python -c ''
