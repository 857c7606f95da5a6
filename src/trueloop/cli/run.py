"""`trueloop run`: run any training script as Python would, and report its silent failures."""

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import App, CycloptsError, Parameter

from trueloop.app.sanitizer.run_command import RunOptions, sanitize
from trueloop.core.paths import path_exists
from trueloop.sanitizer.run_program import ProgramCommand

OPTIONS_WITH_VALUE = ("--json", "--html", "--sarif", "--select", "--ignore")
APP = App(
    name="trueloop run",
    usage="Usage: trueloop run [OPTIONS] SCRIPT [ARGUMENTS]\n       trueloop run [OPTIONS] -m MODULE [ARGUMENTS]",
    help="Run a training script as Python would, and report its silent failures.",
    help_epilogue="Exit code: that of the script; 3 because of --strict or --stop-on-error; 2 for wrong usage.",
    version_flags=[],
    result_action="return_value",
    suppress_keyboard_interrupt=False,
    default_parameter=Parameter(negative=(), show_default=False),
)


def run_command(*tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)]) -> int:
    """Run a script under the sanitizer. Options come before the script, its own arguments after it."""
    option_tokens, module, command = split(tokens)
    options = APP(option_tokens, exit_on_error=False, print_error=False)
    if options is None:  # the help was printed
        return 0
    if not command:
        raise CycloptsError(msg="The script is missing: trueloop run train.py.", app=APP)
    target, *arguments = command
    if not module and not path_exists(Path(target)):
        raise CycloptsError(msg=f"There is no script {target!r}.{_suggest_script(Path(target))}", app=APP)
    return sanitize(ProgramCommand(target=target, arguments=tuple(arguments), module=module), options)


@APP.default
def _parse_options(*, run_options: Annotated[RunOptions | None, Parameter(name="*")] = None) -> RunOptions:
    return run_options or RunOptions()


def split(tokens: Sequence[str]) -> tuple[list[str], bool, list[str]]:
    """Split a command line: return trueloop's options, whether -m follows, and the program with its arguments."""
    index = 0
    while index < len(tokens) and tokens[index].startswith("-") and tokens[index] not in ("-", "-m", "--"):
        index += 2 if tokens[index] in OPTIONS_WITH_VALUE else 1
    first = tokens[index] if index < len(tokens) else ""
    return list(tokens[:index]), first == "-m", list(tokens[index + (first in ("-m", "--")) :])


def _suggest_script(path: Path) -> str:
    close = difflib.get_close_matches(path.name, [each.name for each in path.parent.glob("*.py")], n=1)
    return f" Did you mean {str(path.with_name(close[0]))!r}?" if close else ""
