"""Which run a word on the command line means: a path, a name below the root, or the beginning of a name or run id."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from trueloop.core.errors import RunFolderError
from trueloop.core.paths import is_file
from trueloop.runs.journal import JOURNAL_NAME
from trueloop.runs.queries.index import load_overviews, run_names

_MIN_ID_DIGITS = 4  # fewer would find some run by chance


def find_run(word: str, root: Path) -> Path:
    """Return the run folder that a word means.

    Args:
        word: a path to a run folder, or a name below the root, or an unambiguous beginning of a name or of a run id.
        root: the folder of the runs.

    Raises:
        RunFolderError: there is no such run, or several; or the word, taken as a name, leads out of the root.
    """
    if not word or "\0" in word:
        raise _unknown_run_error(word, root)
    is_path = Path(word).is_absolute() or any(sep in word for sep in (os.sep, os.altsep) if sep) or word in (".", "..")
    if is_path and _is_run(Path(word)):
        return Path(word)
    if _is_inside(root / word, root, word) and _is_run(root / word):
        return root / word
    if not is_path and _is_run(Path(word)):
        return Path(word)
    return _find_by_prefix(word, root)


def _is_run(path: Path) -> bool:
    return is_file(path / JOURNAL_NAME)


def _is_inside(path: Path, root: Path, word: str) -> bool:
    """See that a name stays below the root, links followed.

    Raises:
        RunFolderError: it does not.
    """
    try:
        inside = path.resolve().is_relative_to(root.resolve()) and path.resolve() != root.resolve()
    except OSError:
        return False
    if inside:
        return True
    raise RunFolderError(
        f"{word!r} is no run folder, and as a name it leads out of {str(root)!r}.",
        why="Names of runs are looked up below the root only; what lies elsewhere is named by its own path.",
        fix="Give the path of a folder that holds a journal.jsonl, or a name that `trueloop runs list` shows.",
    )


def _find_by_prefix(word: str, root: Path) -> Path:
    found = {name for name in run_names(root) if name.startswith(word)}
    if len(word) >= _MIN_ID_DIGITS and all(char in "0123456789abcdef" for char in word):
        found |= {seen.name for seen in load_overviews(root) if seen.run_id.startswith(word)}
    if len(found) == 1:
        return root / found.pop()
    if not found:
        raise _unknown_run_error(word, root)
    shown = sorted(found)
    more = f" and {len(shown) - 5} more" if len(shown) > 5 else ""
    raise RunFolderError(
        f"{word!r} is the beginning of {len(shown)} runs: {', '.join(shown[:5])}{more}.", fix="Write more of the name."
    )


def _unknown_run_error(word: str, root: Path) -> RunFolderError:
    known = run_names(root)
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    if near:
        fix = f"Did you mean {near[0]!r}?"
    elif known:
        fix = f"trueloop runs list --root {root}"
    else:
        fix = f"There are no runs in {str(root)!r}; say where they are with --root, or give the path of a run folder."
    return RunFolderError(f"There is no run {word!r} in {str(root)!r}.", fix=fix)
