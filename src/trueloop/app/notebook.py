"""``%load_ext trueloop`` and ``%%watch`` in IPython and Jupyter."""

from __future__ import annotations

import shlex
from typing import Any

from trueloop.app.sanitizer.watch import WatchSession, watch
from trueloop.core.errors import InvalidConfig


def load_ipython_extension(shell: Any) -> None:
    """Give a shell the magic ``%%watch``.

    Args:
        shell: IPython's InteractiveShell, which calls this for ``%load_ext trueloop``.
    """

    def watch_cell(line: str, cell: str) -> WatchSession:
        """Run the cell under the watch and show what was found: ``%%watch [--select CODES] [--ignore CODES]``."""
        watching = watch(**options(line))
        with watching:
            outcome = shell.run_cell(cell)
            error = getattr(outcome, "error_in_exec", None) or getattr(outcome, "error_before_exec", None)
            if error is not None:  # the shell has shown it
                watching.report_error(error)
        return watching

    shell.register_magic_function(watch_cell, magic_kind="cell", magic_name="watch")


def options(line: str) -> dict[str, list[str]]:
    """Read the words behind ``%%watch``.

    Raises:
        InvalidConfig: a word that is no option.
    """
    given: dict[str, list[str]] = {"select": [], "ignore": []}
    words = iter(shlex.split(line))
    for word in words:
        name, _, value = word.partition("=")
        if name not in ("--select", "--ignore") or not (value := value or next(words, "")):
            raise InvalidConfig(f"%%watch does not know {word!r}.", fix="%%watch --select GRD,LOS001 --ignore MEM001")
        given[name[2:]].append(value)
    return given
