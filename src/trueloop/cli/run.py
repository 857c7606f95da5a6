"""`trueloop run`: run any training script as Python would, and report its silent failures."""

from typing import Annotated

from cyclopts import App, Parameter

from trueloop.app.sanitizer.run_command import RunOptions, sanitize
from trueloop.cli.script_words import split_words

OPTIONS_WITH_VALUE = ("--json", "--html", "--sarif", "--select", "--ignore")
APP = App(
    name="trueloop run",
    usage="Usage: trueloop run [OPTIONS] SCRIPT [ARGUMENTS]\n       trueloop run [OPTIONS] -m MODULE [ARGUMENTS]",
    help="Run a training script or notebook as Python would, and report its silent failures.",
    help_epilogue="Exit code: that of the script; 3 because of --strict or --stop-on-error; 2 for wrong usage.",
    version_flags=[],
    result_action="return_value",
    suppress_keyboard_interrupt=False,
    default_parameter=Parameter(negative=(), show_default=False),
)


def run_command(*tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)]) -> int:
    """Run a script under the sanitizer. Options come before the script, its own arguments after it."""
    words = split_words(tokens, OPTIONS_WITH_VALUE)
    options = APP(words.options, exit_on_error=False, print_error=False)
    if options is None:  # the help was printed
        return 0
    return sanitize(words.program(APP), options)


@APP.default
def _parse_options(*, run_options: Annotated[RunOptions | None, Parameter(name="*")] = None) -> RunOptions:
    return run_options or RunOptions()
