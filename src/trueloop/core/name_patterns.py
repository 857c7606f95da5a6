"""Select names by shell patterns such as "backbone.*" or "*.bias", and explain a pattern that matches nothing."""

import difflib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final

from trueloop.core.errors import InvalidConfig

MAX_NAMES: Final = 5  # shown in a message


def match_names(names: Sequence[str], patterns: Sequence[str], *, option: str, why: str) -> list[str]:
    """Return the names that any pattern matches, in the order of ``names``.

    Args:
        names: dotted names, such as those of a model's parameters.
        patterns: case-sensitive patterns of the standard library's ``fnmatch``.
        option: the option with the patterns, for the message: "freeze".
        why: the consequence of a pattern that matches nothing, for the message.

    Raises:
        InvalidConfig: a pattern matches no name; the message suggests the nearest name or prefix.
    """
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise InvalidConfig(
                f"{option} has the pattern {pattern!r}, which matches no parameter.",
                why=why,
                fix=_suggest(pattern, names),
            )
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


def format_names(names: Sequence[str]) -> str:
    """Return the first five names and the number of further names: "a, b, c, d, e and 3 more"."""
    omitted = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {omitted} more" if omitted > 0 else "")


def _suggest(pattern: str, names: Sequence[str]) -> str:
    prefixes = {name.rsplit(".", depth)[0] + ".*" for name in names for depth in range(1, name.count(".") + 1)}
    closest = difflib.get_close_matches(pattern, [*names, *sorted(prefixes)], n=1)
    return f"Did you mean {closest[0]!r}?" if closest else f"The parameters are called: {format_names(names)}."
