"""Find the run that a command line argument names by its path, its name, or a prefix of its name or run id."""

import os
from pathlib import Path

from trueloop.core.errors import RunFolderError
from trueloop.core.formatting import did_you_mean
from trueloop.core.name_patterns import format_names
from trueloop.core.paths import is_file
from trueloop.runs.journal import JOURNAL_NAME
from trueloop.runs.queries.index import load_overviews, run_names

_MIN_ID_DIGITS = 4  # shorter prefixes would match by chance


def find_run(word: str, root: Path) -> Path:
    """Return the run folder that a word names.

    Args:
        word: path of a run folder, name of a run in the root, or unique prefix of such a name or of a run id.
        root: the folder of the runs.

    Raises:
        RunFolderError: no run or several runs match, or the name leads out of the root.
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
    """Check that a name leads to a path inside the root after following links.

    Raises:
        RunFolderError: the name leads out of the root.
    """
    try:
        is_inside = path.resolve().is_relative_to(root.resolve()) and path.resolve() != root.resolve()
    except OSError:
        return False
    if is_inside:
        return True
    raise RunFolderError(
        f"{word!r} is not a run folder, and read as the name of a run it leads out of {str(root)!r}.",
        why="Names of runs are only searched in that folder; other runs must be named by their path.",
        fix="Pass the path of a folder with a journal.jsonl, or a name that `trueloop runs list` shows.",
    )


def _find_by_prefix(word: str, root: Path) -> Path:
    names = {name for name in run_names(root) if name.startswith(word)}
    if len(word) >= _MIN_ID_DIGITS and all(char in "0123456789abcdef" for char in word):
        names |= {run.name for run in load_overviews(root) if run.run_id.startswith(word)}
    if len(names) == 1:
        return root / names.pop()
    if not names:
        raise _unknown_run_error(word, root)
    raise RunFolderError(
        f"{word!r} matches {len(names)} runs: {format_names(sorted(names))}.", fix="Write more letters of the name."
    )


def _unknown_run_error(word: str, root: Path) -> RunFolderError:
    names = run_names(root)
    if names:
        fix = did_you_mean(word, names, cutoff=0.5).strip() or f"`trueloop runs list --root {root}` lists the runs."
    else:
        fix = f"There are no runs in {str(root)!r}; pass their folder with --root, or pass the path of a run folder."
    return RunFolderError(f"There is no run {word!r} in {str(root)!r}.", fix=fix)
