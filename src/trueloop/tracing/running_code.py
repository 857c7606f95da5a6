"""Finds the code that is running: the frames of the program, their files, and the user files that were imported."""

import linecache
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

from trueloop.core.source_text import read_source
from trueloop.tracing.user_location import is_trueloop_code, is_user_code, is_user_file

DYNAMIC: Final = frozenset(("setattr", "vars", "__dict__"))
"""Names with which code can access attributes whose names it does not contain."""
_TRUELOOP: Final = Path(__file__).parents[1]
_HOOKS: Final = ("<trueloop", *(f"{_TRUELOOP / folder}{os.sep}" for folder in ("tracing", "sanitizer", "failures")))
_RUNPY: Final = re.compile(r"<frozen runpy>|[/\\]runpy\.py$")
_INSTALLED: Final = re.compile(r"[/\\](site|dist)-packages[/\\]")


def program_stack() -> list[FrameType]:
    """Return the program's frames, outermost first, without those of PyTorch and of code that started the program."""
    inner = (os.path.dirname(sys.modules["torch"].__file__ or "") + os.sep, *_HOOKS)  # noqa: PTH120
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
    found: list[FrameType] = []
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(inner):
            pass
        elif is_trueloop_code(code) or _RUNPY.search(code.co_filename):
            break
        elif not code.co_filename.startswith("<"):
            found.append(frame)
        frame = frame.f_back
    return found[::-1]


def user_files(stack: Iterable[FrameType]) -> set[str]:
    """Return the files of the user's frames, with all cells of a notebook."""
    files = {each.f_code.co_filename for each in stack if is_user_code(each.f_code)}
    return files.union(notebook_cells()) if any(map(_is_cell, files)) else files


def notebook_cells() -> list[str]:
    """Return the pseudo files of notebook cells."""
    return [name for name in list(linecache.cache) if _is_cell(name) and is_user_file(name)]


def _is_cell(file: str) -> bool:
    """Return True for a pseudo file, which linecache stores without a modification time."""
    entry = linecache.cache.get(file, ())
    return len(entry) > 1 and entry[1] is None


def user_modules() -> dict[str, str]:
    """Return the file of each imported module of the user, by the module's name."""
    found: dict[str, str] = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__dict__", {}).get("__file__")  # may be anything
        if isinstance(file, str) and is_user_file(file) and file.endswith(".py"):
            found[name] = file
    return found


def is_library_frame(frame: FrameType) -> bool:
    """Return True for a frame of an installed library."""
    return _INSTALLED.search(frame.f_code.co_filename) is not None


def in_notebook() -> bool:
    """Return True in a notebook or IPython shell, where the user may run another cell."""
    return getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)() is not None


def running_files(attribute: str) -> frozenset[str] | None:
    """Return the files of the running code; None if running code without source code may read an attribute."""
    running = {code: bool(read_source(code.co_filename)) for code in _running_code()}
    if any(refers_to(code, attribute) for code, has_source in running.items() if not has_source):
        return None
    return frozenset(code.co_filename for code, has_source in running.items() if has_source)


def refers_to(code: CodeType, attribute: str) -> bool:
    """Return True if code, or a function within it, refers to an attribute or may do so dynamically."""
    if attribute in code.co_names or attribute in code.co_consts or not DYNAMIC.isdisjoint(code.co_names):
        return True
    return any(refers_to(each, attribute) for each in code.co_consts if isinstance(each, CodeType))


def _running_code() -> Iterator[CodeType]:
    """Yield the code of running user functions, in any thread, and of ``python -c`` or ``exec``."""
    for innermost in sys._current_frames().values():  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
        frame = innermost
        while frame is not None:
            if is_user_code(frame.f_code) or frame.f_code.co_filename == "<string>":
                yield frame.f_code
            frame = frame.f_back
