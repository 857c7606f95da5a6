"""Provides ``%load_ext trueloop`` and ``%%watch`` in IPython and Jupyter."""

import shlex
from typing import Any

from trueloop.app.sanitizer.watch import WatchSession, watch
from trueloop.core.errors import InvalidConfig


def load_ipython_extension(shell: Any) -> None:
    """Register the magic ``%%watch`` in a shell.

    Args:
        shell: IPython's InteractiveShell, which calls this for ``%load_ext trueloop``.
    """

    def watch_cell(line: str, cell: str) -> WatchSession:
        """Run the cell under the sanitizer and show the report: ``%%watch [--select CODES] [--ignore CODES]``."""
        session = watch(**options(line))
        with session:
            outcome = shell.run_cell(cell)
            error = getattr(outcome, "error_in_exec", None) or getattr(outcome, "error_before_exec", None)
            if error is not None:  # the shell has printed it
                session.report_error(error)
        return session

    shell.register_magic_function(watch_cell, magic_kind="cell", magic_name="watch")


def options(line: str) -> dict[str, list[str]]:
    """Parse the arguments of ``%%watch``.

    Raises:
        InvalidConfig: an argument is not an option of ``%%watch``.
    """
    parsed: dict[str, list[str]] = {"select": [], "ignore": []}
    words = iter(shlex.split(line))
    for word in words:
        name, _, value = word.partition("=")
        if name not in ("--select", "--ignore") or not (value := value or next(words, "")):
            raise InvalidConfig(f"%%watch does not know {word!r}.", fix="%%watch --select GRD,LOS001 --ignore MEM001")
        parsed[name[2:]].append(value)
    return parsed
