"""`trueloop diagnose`: run a training script, then try changes on it, and say which one makes it learn."""

from typing import Annotated

from cyclopts import App, Parameter

from trueloop.app.diagnosis.diagnose_command import DiagnoseOptions, diagnose
from trueloop.cli.script_words import split_words

OPTIONS_WITH_VALUE = ("--budget", "--updates", "--json", "--html", "--select", "--ignore")
APP = App(
    name="trueloop diagnose",
    usage="Usage: trueloop diagnose [OPTIONS] SCRIPT [ARGUMENTS]\n"
    "       trueloop diagnose [OPTIONS] -m MODULE [ARGUMENTS]",
    help="Find out why a script does not learn. It is run as by `trueloop run`, until it ends or Ctrl-C comes. Then "
    "copies of it make their first updates again, each under one change: another rate, standardised inputs or targets, "
    "another optimizer, no weight decay, and so on. They write none of your files.",
    help_epilogue="Exit code: that of the script; 2 for wrong usage.",
    version_flags=[],
    result_action="return_value",
    suppress_keyboard_interrupt=False,
    default_parameter=Parameter(negative=()),
)


def diagnose_command(*tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)]) -> int:
    """Say which change makes a script learn. Options come before the script, its own arguments after it."""
    words = split_words(tokens, OPTIONS_WITH_VALUE)
    options = APP(words.options, exit_on_error=False, print_error=False)
    if options is None:  # the help was printed
        return 0
    return diagnose(words.program(APP), options)


@APP.default
def _parse_options(*, options: Annotated[DiagnoseOptions | None, Parameter(name="*")] = None) -> DiagnoseOptions:
    return options or DiagnoseOptions()
