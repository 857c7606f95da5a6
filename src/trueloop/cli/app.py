"""The command `trueloop`: which commands there are, and how an error becomes words and an exit code."""

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

# Exit codes: 0 done, 1 a lesson (TrueloopError) or no place to write to, 2 wrong usage, 130 Ctrl-C, 143 SIGTERM.
# Of `lint`: 0 clean, 1 findings, 2 something could not be judged.
# Of `run`: the script's own, or 3 where findings make it a failure.


_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_COMMANDS: Final = {
    "lint": "Find silent failures in source, without running it.",
    "doctor": "Look at this machine before a run does.",
    "explain": "Explain a silent failure, or an error: trueloop explain GRD001.",
    "failures": "List every silent failure that is known.",
    "recipes": "List the built-in recipes.",
    "plan": "Count iterations, windows and updates before training.",
    "verify": "Prove what should hold of your model and loop.",
    "template": "Write the file that starts a run on SLURM or Kubernetes.",
    "export": "Write a trained model as pt2, ONNX or TorchScript.",
    "predict": "Answer files with an exported model.",
    "serve": "Answer requests with an exported model.",
    "report": "Draw a run's curves and write its report.",
    "lab": "See a training loop and break it, in the browser.",
}
"""In files of their own name."""


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
        help_flags=[],  # `trueloop train digits --help` is answered by the recipe's own settings
        version_flags=[],
    )
    built.command(
        "trueloop.cli.profile:profile_command",
        name="profile",
        help="Say where the time of an update goes.",
        help_flags=[],
        version_flags=[],
    )
    built.command(
        "trueloop.cli.tune:tune_command",
        name="tune",
        help="Find the fastest settings that change nothing else.",
        help_flags=[],
        version_flags=[],
    )
    built.command(
        "trueloop.cli.graph:graph_command",
        name="graph",
        help="Show the graph behind a loss, and what it keeps alive.",
        help_flags=[],
        version_flags=[],
    )
    built.command(
        "trueloop.cli.run:run_command",
        name="run",
        help="Run a script and name what it silently does wrong.",
        help_flags=[],  # `trueloop run script.py --help` is answered by the script
        version_flags=[],
    )
    for name, line in _COMMANDS.items():
        built.command(f"trueloop.cli.{name}:{name}_command", name=name, help=line, version_flags=[])
    built.command(runs_app())
    built.command(arena_app())
    return built


app = _build_app()
"""The command line; a command's module is imported when the command runs, so that `--help` needs no torch."""


def main(tokens: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; the only place that turns errors into words.

    Args:
        tokens: the words after `trueloop`; None takes them from ``sys.argv``.
    """
    words = sys.argv[1:] if tokens is None else list(tokens)
    if words[:1] == ["run"]:
        words.insert(1, "--")  # all that follows is passed on as it stands, a "--" or an empty word among it too
    else:
        _open_streams()
    try:
        code = app(words, exit_on_error=False, print_error=False)
        # A script under `run` may have put another there, or closed it.
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
        # The reader (`head`, `less`) is gone. Python would complain again when it flushes at exit.
        _give_up_output()
        return 1
    except OSError as error:
        if error.errno not in _FULL or error.filename is not None or not _fail_on_closed_output():
            raise
        _give_up_output()
        _print_error(
            f"What was asked for cannot be written: {error.strerror or error}.", "", "Make room, or write it elsewhere."
        )
        return 1
    return code if isinstance(code, int) else 0


def _fail_on_closed_output() -> bool:
    """Whether standard output is what an error came from: then it takes nothing now, either."""
    try:
        print(flush=True)
    except OSError:
        return True
    return False


def _give_up_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open_streams() -> None:
    """Read nothing and write nowhere where a stream is closed, and write paths of which an encoding has no letters."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115, PTH123 - as long as we live
    if sys.stdout is sys.__stdout__ and isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def _error_name(error: CycloptsError) -> str:
    """Write out the command that was used wrongly: "trueloop runs list"."""
    if error.command_chain:
        return " ".join(["trueloop", *error.command_chain])
    command = error.app.name[0] if error.app else "trueloop"
    return command if command.startswith("trueloop") else f"trueloop {command}"


def _print_error(what: str, why: str, fix: str) -> None:
    """Print one error on stderr: what happened, why it matters, what to do."""
    from rich.console import Console
    from rich.text import Text

    text = Text.assemble(("error: ", "bold red"), what)
    if why:
        text.append(f"\n{why}")
    if fix:
        text.append("\nfix: ", style="bold green").append(fix)
    Console(stderr=True, soft_wrap=True, highlight=False).print(text)
