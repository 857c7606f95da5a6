"""Something of the dataset cannot be sent to a worker process.

Workers that are spawned, as they are on macOS and Windows and with ``multiprocessing_context="spawn"``, get the
dataset, ``collate_fn`` and ``worker_init_fn`` as a pickle. A lambda, a function within a function and an open file
have none.
"""

from __future__ import annotations

import re

from trueloop.failures.pytorch_error import Explanation, KnownError, RaisedError


def explain(raised: RaisedError, match: re.Match[str]) -> Explanation | None:
    """Name what cannot be sent."""
    if not any(file.startswith(("utils/data/", "multiprocessing/")) for file in raised.pytorch_files):
        return None  # the program pickles something of its own
    what = (match.groupdict().get("what") or "").strip("'<> ")
    kind = "a lambda" if "<lambda>" in raised.message else f"`{what}`" if what else "an object in it"
    return Explanation(
        meaning=f"Workers are started as new processes here, and get the dataset, collate_fn and worker_init_fn as a "
        f"pickle: {kind} has none.",
        fix="Write it as a function (or a class) at the top of a module, with functools.partial for its arguments; "
        "open files and connections in the worker, when they are first used.",
    )


ERROR = KnownError(
    title="Something of the dataset cannot be sent to a worker",
    exception_types=frozenset({"AttributeError", "PicklingError", "TypeError"}),
    message_patterns=(
        r"Can't (?:pickle|get) local object (?P<what>.*)",
        r"Can't pickle (?P<what><function .*?>|<class .*?>)",
        r"cannot pickle (?P<what>'[\w.]+') object",
    ),
    explain=explain,
)
