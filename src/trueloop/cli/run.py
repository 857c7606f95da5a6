"""`trueloop run`: any training script, run as Python would run it, and what it silently does wrong."""

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import App, CycloptsError, Parameter

from trueloop.app.sanitizer.run_command import RunOptions, sanitize
from trueloop.core.paths import path_exists
from trueloop.sanitizer.run_program import ProgramCommand

VALUED = ("--json", "--html", "--sarif", "--select", "--ignore")
APP = App(
    name="trueloop run",
    usage="Usage: trueloop run [OPTIONS] SCRIPT [ARGUMENTS]\n       trueloop run [OPTIONS] -m MODULE [ARGUMENTS]",
    help="Run a training script as Python would, and name what it silently does wrong.",
    help_epilogue="Exit code: the script's own; 3 by --strict or --stop-on-error; 2 for wrong usage.",
    version_flags=[],
    result_action="return_value",
    suppress_keyboard_interrupt=False,
    default_parameter=Parameter(negative=(), show_default=False),
)


def run_command(*tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)]) -> int:
    """Run a script under the watch. Options come before it; everything behind it is its own."""
    options, module, words = split(tokens)
    wishes = APP(options, exit_on_error=False, print_error=False)
    if wishes is None:  # the help was printed
        return 0
    if not words:
        raise CycloptsError(msg="Name the script: trueloop run train.py.", app=APP)
    target, *arguments = words
    if not module and not path_exists(Path(target)):
        raise CycloptsError(msg=f"There is no script {target!r}.{_similar(Path(target))}", app=APP)
    return sanitize(ProgramCommand(target=target, arguments=tuple(arguments), module=module), wishes)


@APP.default
def _read(*, wishes: Annotated[RunOptions | None, Parameter(name="*")] = None) -> RunOptions:
    return wishes or RunOptions()


def split(tokens: Sequence[str]) -> tuple[list[str], bool, list[str]]:
    """Cut a command line into our options, whether a module is named, and the program with its own words."""
    at = 0
    while at < len(tokens) and tokens[at].startswith("-") and tokens[at] not in ("-", "-m", "--"):
        at += 2 if tokens[at] in VALUED else 1
    word = tokens[at] if at < len(tokens) else ""
    return list(tokens[:at]), word == "-m", list(tokens[at + (word in ("-m", "--")) :])


def _similar(path: Path) -> str:
    close = difflib.get_close_matches(path.name, [each.name for each in path.parent.glob("*.py")], n=1)
    return f" Did you mean {str(path.with_name(close[0]))!r}?" if close else ""
