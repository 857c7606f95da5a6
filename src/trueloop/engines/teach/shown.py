"""Runs the very text that a page shows, and keeps what it leaves."""

from __future__ import annotations

from typing import Any


def run_shown(text: str, *, into: dict[str, Any] | None = None) -> dict[str, Any]:
    """Run a program, or the next part of one.

    Args:
        text: written by trueloop itself from checked settings; never one that a request brought.
        into: what an earlier part has left; the two parts run as if they were one file.

    Returns:
        The scope: every name the program has bound. What it printed is in ``"printed"``, a list of lines.
    """
    printed: list[str] = []

    def keep(*values: object) -> None:
        printed.append(" ".join(map(str, values)))

    scope = {"__name__": "__main__", "print": keep, "printed": printed} if into is None else into
    exec(compile(text, "<as shown>", "exec"), scope)  # noqa: S102  # the text is ours, see above
    return scope
