"""Defines the command `trueloop`: its subcommands, and how errors become messages and exit codes."""

import errno
import io
import os
import sys
from collections.abc import Sequence
from typing import Final

from cyclopts import App, CycloptsError

from trueloop.cli.arena import arena_app
from trueloop.cli.runs import runs_app
from trueloop.core.errors import TrueloopError
from trueloop.version import __version__

# Exit codes: 0 done, 1 a TrueloopError or an output that cannot be written, 2 wrong usage, 130 Ctrl-C, 143 SIGTERM.
# Exit codes of `lint`: 0 clean, 1 findings, 2 some files could not be checked.
# Exit codes of `run`: that of the script, or 3 if an option makes findings a failure.


_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_COMMANDS: Final = {
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
"""Help of the commands whose module has the name of the command."""


def _build_app() -> App:
    built = App(
        name="trueloop",
        help="Train PyTorch models without silent failure.",
        version=__version__,
        version_flags=["--version"],
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    built.command(
        "trueloop.cli.train:train_command",
        name="train",
        help="Train a recipe: trueloop train digits.",
        help_flags=[],  # `trueloop train digits --help` lists the settings of the recipe
        version_flags=[],
    )
    built.command(
        "trueloop.cli.profile:profile_command",
        name="profile",
        help="Measure where the time of an update is spent.",
        help_flags=[],
        version_flags=[],
    )
    built.command(
        "trueloop.cli.tune:tune_command",
        name="tune",
        help="Find the fastest settings that do not change what is learned.",
        help_flags=[],
        version_flags=[],
    )
    built.command(
        "trueloop.cli.graph:graph_command",
        name="graph",
        help="Show the autograd graph of a loss and the memory it keeps.",
        help_flags=[],
        version_flags=[],
    )
    built.command(
        "trueloop.cli.run:run_command",
        name="run",
        help="Run a training script and report its silent failures.",
        help_flags=[],  # `trueloop run script.py --help` is the script's help
        version_flags=[],
    )
    for name, line in _COMMANDS.items():
        built.command(f"trueloop.cli.{name}:{name}_command", name=name, help=line, version_flags=[])
    built.command(runs_app())
    built.command(arena_app())
    return built


app = _build_app()
"""The command line. The module of a command is imported only when the command runs, so `--help` does not need torch."""


def main(tokens: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; errors are converted to messages only here.

    Args:
        tokens: the words after `trueloop`; None = those in ``sys.argv``.
    """
    words = sys.argv[1:] if tokens is None else list(tokens)
    if words[:1] == ["run"]:
        words.insert(1, "--")  # all following words are passed on unchanged, even "--" and empty words
    else:
        _open_streams()
    try:
        code = app(words, exit_on_error=False, print_error=False)
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
        # The reader (`head`, `less`) has ended. Python would raise again when it flushes at exit.
        _discard_output()
        return 1
    except OSError as error:
        if error.errno not in _FULL or error.filename is not None or not _fail_on_closed_output():
            raise
        _discard_output()
        _print_error(
            f"The output cannot be written: {error.strerror or error}.", "", "Free space, or write to another place."
        )
        return 1
    return code if isinstance(code, int) else 0


def _fail_on_closed_output() -> bool:
    """Return True if standard output cannot be written, so that it was the cause of an error."""
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
