"""An object in the dataset cannot be pickled for a worker process.

Spawned workers (on macOS, on Windows, and with ``multiprocessing_context="spawn"``) receive the dataset, ``collate_fn``
and ``worker_init_fn`` as a pickle. A lambda, a nested function and an open file cannot be pickled.
"""

import re

from trueloop.failures.pytorch_error import Explanation, KnownError, RaisedError


def explain(error: RaisedError, match: re.Match[str]) -> Explanation | None:
    """Name the object that cannot be pickled."""
    if not any(file.startswith(("utils/data/", "multiprocessing/")) for file in error.pytorch_files):
        return None  # the program calls pickle itself
    what = (match.groupdict().get("what") or "").strip("'<> ")
    item = "a lambda" if "<lambda>" in error.message else f"`{what}`" if what else "an object in them"
    return Explanation(
        meaning="Workers start as new processes and receive the dataset, collate_fn and worker_init_fn as a pickle, "
        f"but {item} cannot be pickled.",
        fix="Define a function or a class at the top level of a module, with functools.partial for its arguments. Open "
        "files and connections in the worker, on first use.",
    )


ERROR = KnownError(
    title="The dataset cannot be pickled for a worker",
    exception_types=frozenset({"AttributeError", "PicklingError", "TypeError"}),
    message_patterns=(
        r"Can't (?:pickle|get) local object (?P<what>.*)",
        r"Can't pickle (?P<what><function .*?>|<class .*?>)",
        r"cannot pickle (?P<what>'[\w.]+') object",
    ),
    explain=explain,
)
