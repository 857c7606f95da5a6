"""Provide ``%load_ext trueloop`` and ``%%watch`` in IPython and Jupyter."""

import shlex
from typing import Any

from trueloop.app.sanitizer.watch import WatchSession, watch
from trueloop.core.errors import InvalidConfig


def load_ipython_extension(shell: Any) -> None:
    """Register the magic ``%%watch`` in IPython's InteractiveShell, which calls this for ``%load_ext trueloop``."""

    def watch_cell(line: str, cell: str) -> WatchSession:
        """Run the cell under the sanitizer and show the report: ``%%watch [--select CODES] [--ignore CODES]``."""
        session = watch(**parse_options(line))
        with session:
            result = shell.run_cell(cell)
            error = getattr(result, "error_in_exec", None) or getattr(result, "error_before_exec", None)
            if error is not None:  # the shell has printed the error instead of raising it
                session.report_error(error)
        return session

    shell.register_magic_function(watch_cell, magic_kind="cell", magic_name="watch")


def parse_options(line: str) -> dict[str, list[str]]:
    """Parse the arguments of ``%%watch``.

    Raises:
        InvalidConfig: an argument is not an option of ``%%watch``.
    """
    parsed: dict[str, list[str]] = {"select": [], "ignore": []}
    arguments = iter(shlex.split(line))
    for argument in arguments:
        name, _, value = argument.partition("=")
        if name not in ("--select", "--ignore") or not (value := value or next(arguments, "")):
            raise InvalidConfig(f"%%watch has no option {argument!r}.", fix="%%watch --select GRD --ignore MEM001")
        parsed[name[2:]].append(value)
    return parsed
