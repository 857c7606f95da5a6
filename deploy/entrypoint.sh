#!/bin/sh
# Says what this container has to train with, refuses to train on the CPU by mistake, then becomes the command.
#
# The first word may be a program (python, torchrun) or a command of trueloop's (train, run, lab).
# TRUELOOP_REQUIRE_GPU=1   no start without a GPU that torch can use
# TRUELOOP_DOCTOR=strict   no start where the doctor finds that a run would fail
# TRUELOOP_DOCTOR=off      not looked at
set -eu

say() {
    printf 'trueloop-entrypoint: %s\n' "$1" >&2
}

if [ "$#" -eq 0 ]; then
    set -- trueloop --help
fi
case "$(command -v -- "$1" 2>/dev/null || true)" in
*/*) ;;                      # a program
*) set -- trueloop "$@" ;;   # a command of trueloop's; `export` is a word of the shell's as well
esac

# What trains, and what a user may train with.
case "$(basename -- "$1") ${2:-}" in
"trueloop train" | "trueloop run" | "trueloop tune" | "trueloop profile" | "trueloop lab" | "trueloop serve") trains=yes ;;
python* | torchrun* | accelerate* | deepspeed*) trains=yes ;;
*) trains=no ;;
esac
for word in "$@"; do
    case "$word" in
    --help | -h | --version) trains=no ;;
    esac
done

gpu_required() {
    case "${TRUELOOP_REQUIRE_GPU:-}" in
    "" | 0 | [Ff]alse | FALSE | [Nn]o | NO | [Oo]ff | OFF) return 1 ;;
    esac
}

if [ "$trains" = yes ] && { [ "${TRUELOOP_DOCTOR:-}" != off ] || gpu_required; }; then
    # To standard error: standard output is the command's own, and may be JSON.
    if ! trueloop doctor --quick >&2; then
        if gpu_required && ! trueloop doctor --quick --only cpu-fallback >/dev/null 2>&1; then
            say "refused: TRUELOOP_REQUIRE_GPU=${TRUELOOP_REQUIRE_GPU}, and torch can use no GPU (see above)."
            exit 1
        fi
        if [ "${TRUELOOP_DOCTOR:-}" = strict ]; then
            say "refused: TRUELOOP_DOCTOR=strict, and a run would fail (see above)."
            exit 1
        fi
        say "a run would fail (see above); starting all the same. TRUELOOP_DOCTOR=strict would refuse."
    fi
fi

# No shell stays in between: signals reach the command itself, which saves and ends.
exec "$@"
