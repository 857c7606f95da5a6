"""An object in the dataset cannot be pickled for a worker process.

On macOS, on Windows, and with ``multiprocessing_context="spawn"``, the dataset, ``collate_fn`` and ``worker_init_fn``
are sent to each worker with Python's ``pickle``. A lambda, a nested function or an open file cannot be pickled.
"""

import re

from trueloop.failures.pytorch_error import Explanation, KnownError, RaisedError


def explain(error: RaisedError, match: re.Match[str]) -> Explanation | None:
    """Name the object that cannot be pickled."""
    if not any(file.startswith(("utils/data/", "multiprocessing/")) for file in error.pytorch_files):
        return None  # the program calls pickle itself
    name = (match.groupdict().get("what") or "").strip("'<> ")
    item = "a lambda" if "<lambda>" in error.message else f"`{name}`" if name else "an object in them"
    return Explanation(
        meaning="Workers start as new processes, and the dataset, collate_fn and worker_init_fn are pickled for them, "
        f"but {item} cannot be pickled.",
        fix="Define functions and classes at the top level of a module, and use functools.partial for arguments. Open "
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
