"""Define the command `trueloop`: its subcommands, and how errors become messages and exit codes."""

import errno
import io
import os
import sys
from collections.abc import Sequence
from typing import Any, Final

from cyclopts import App, CycloptsError

from trueloop.cli.arena import arena_app
from trueloop.cli.runs import runs_app
from trueloop.core.errors import TrueloopError
from trueloop.version import __version__

# Exit codes: 0 done, 1 a TrueloopError or an output that cannot be written, 2 wrong usage, 130 Ctrl-C, 143 SIGTERM.
# Exit codes of `lint`: 0 clean, 1 findings, 2 no file could be checked (--strict: some could not).
# Exit codes of `run` and `diagnose`: that of the script, or 3 if an option makes findings a failure.


_OUTPUT_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_COMMANDS: Final = {
    "train": "Train a recipe: trueloop train digits.",
    "profile": "Measure where the time of an update is spent.",
    "tune": "Find the fastest settings that do not change what is learned.",
    "graph": "Show the autograd graph of a loss and the memory it keeps.",
    "run": "Run a training script and report its silent failures.",
    "diagnose": "Find out by experiment why a script does not learn.",
    "lint": "Find silent failures in source code, without running it.",
    "doctor": "Check this machine for problems before a run.",
    "explain": "Explain a silent failure, or an error: trueloop explain GRD001.",
    "failures": "List all known silent failures.",
    "recipes": "List the built-in recipes.",
    "plan": "Count iterations, windows and updates before training.",
    "verify": "Prove properties of your model and training loop.",
    "template": "Write the file that starts a run on SLURM or Kubernetes.",
    "export": "Write a trained model as pt2, ONNX or TorchScript.",
    "predict": "Predict on files with an exported model.",
    "serve": "Serve an exported model over HTTP.",
    "report": "Draw a run's curves and write its report.",
    "lab": "Watch and break a training loop in the browser.",
}
"""Help of each command; its module has the same name."""
_COMMANDS_WITH_OWN_HELP: Final = ("train", "profile", "tune", "graph", "run", "diagnose")
"""Commands that handle --help themselves: it lists the settings of a recipe, or is passed to the user's script."""


def _build_app() -> App:
    command_line = App(
        name="trueloop",
        help="Train PyTorch models without silent failure.",
        version=__version__,
        version_flags=["--version"],
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    for name, help_text in _COMMANDS.items():
        own_help: dict[str, Any] = {"help_flags": []} if name in _COMMANDS_WITH_OWN_HELP else {}
        module = f"trueloop.cli.{name}:{name}_command"
        command_line.command(module, name=name, help=help_text, version_flags=[], **own_help)
    command_line.command(runs_app())
    command_line.command(arena_app())
    return command_line


app = _build_app()
"""The command line. The module of a command is imported only when the command runs, so `--help` does not need torch."""


def main(tokens: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; errors are converted to messages only here.

    Args:
        tokens: the arguments after `trueloop`; None = those in ``sys.argv``.
    """
    arguments = sys.argv[1:] if tokens is None else list(tokens)
    if arguments[:1] in (["run"], ["diagnose"]):
        arguments.insert(1, "--")  # all further arguments are passed on unchanged, even "--" and empty ones
    else:
        _open_streams()
    try:
        code = app(arguments, exit_on_error=False, print_error=False)
        # A script under `run` may have replaced or closed standard output.
        if sys.stdout is sys.__stdout__ and not getattr(sys.stdout, "closed", True):
            sys.stdout.flush()
    except TrueloopError as error:
        _print_error(error.what, error.why, error.fix)
        return 1
    except CycloptsError as error:
        _print_error(str(error), "", f"{_error_name(error)} --help")
        return 2
    except KeyboardInterrupt:
        _print_error("Interrupted.", "", "")
        return 130
    except BrokenPipeError:
        # The reader (`head`, `less`) has ended. Without this, Python would raise again when it flushes at exit.
        _discard_output()
        return 1
    except OSError as error:
        if error.errno not in _OUTPUT_ERRORS or error.filename is not None or not _is_output_unwritable():
            raise
        _discard_output()
        _print_error(
            f"The output cannot be written: {error.strerror or error}.", "", "Free space, or write to another disk."
        )
        return 1
    return code if isinstance(code, int) else 0


def _is_output_unwritable() -> bool:
    """Return True if standard output cannot be written, which then caused the error."""
    try:
        print(flush=True)
    except OSError:
        return True
    return False


def _discard_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open_streams() -> None:
    """Replace closed standard streams by the null device, and escape characters that the output's encoding lacks."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115, PTH123 - open until the process ends
    if sys.stdout is sys.__stdout__ and isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def _error_name(error: CycloptsError) -> str:
    """Return the command that was used wrongly: "trueloop runs list"."""
    if error.command_chain:
        return " ".join(["trueloop", *error.command_chain])
    command = error.app.name[0] if error.app else "trueloop"
    return command if command.startswith("trueloop") else f"trueloop {command}"


def _print_error(what: str, why: str, fix: str) -> None:
    """Print one error on stderr: what happened, why, and what to do."""
    from rich.console import Console
    from rich.text import Text

    text = Text.assemble(("error: ", "bold red"), what)
    if why:
        text.append(f"\n{why}")
    if fix:
        text.append("\nfix: ", style="bold green").append(fix)
    Console(stderr=True, soft_wrap=True, highlight=False).print(text)
