"""Runs a program in this process as Python itself would: ``python script.py``, ``python -m package.module``."""

from __future__ import annotations

import builtins
import importlib
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from itertools import pairwise
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any, NamedTuple, cast

_PACKAGE = Path(__file__).resolve().parents[1]
_PARTS = ("tracing", "reporting", "cli", "app/sanitizer/watch.py")
_OURS = ("<trueloop", *(str(_PACKAGE / part) for part in _PARTS))
"""What is found between the program and torch, or between the terminal and the program. `Trainer` is not among it:
whoever uses it wants to see its lines."""
_LOADING = "<frozen importlib"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramCommand:
    """What to run."""

    target: str
    """A file, a folder or archive with a ``__main__.py``, or the name of a module, as it was typed."""
    arguments: tuple[str, ...] = ()
    module: bool = False


class ProgramResult(NamedTuple):
    """How it ended."""

    code: int
    """What Python would have exited with."""
    error: BaseException | None
    """What left it, other than an exit."""


def run_program(program: ProgramCommand, *, on_error: Callable[[BaseException], None] = lambda error: None) -> ProgramResult:
    """Run a program to its end, threads included, and print the traceback Python would print.

    ``sys.argv``, ``sys.path`` and ``__main__`` stay the program's afterwards: its threads, exit functions and pickles
    need them. Once per process, at its end: where the program left threads running, no pool takes work afterwards.

    Args:
        program: what to run.
        on_error: called with an exception that left it, before its traceback is printed.
    """
    threads = set(threading.enumerate())
    main = _fresh_main()
    try:
        _start(program, main)
        ended = ProgramResult(0, None)
    except SystemExit as leave:
        ended = ProgramResult(_exit_code(leave), None)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is the program's, and printed as such
        trace = error.__traceback__
        error.__traceback__ = trace and trace.tb_next  # this very frame
        on_error(error)
        hide_internal_frames(error)
        _print(error)
        ended = ProgramResult(130 if isinstance(error, KeyboardInterrupt) else 1, error)
    try:
        _finish(threads)
    except KeyboardInterrupt:  # Python complains and leaves; so do we, with the code of an interruption
        return ended._replace(code=130)
    return ended


def hide_internal_frames(error: BaseException) -> None:
    """Take our frames, and those that loaded the program, out of an error's traceback and out of its causes'."""
    waiting, seen = [error], set[int]()
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        each.__traceback__ = _without_ours(each.__traceback__)
        waiting += [other for other in (each.__cause__, each.__context__) if other is not None]
        if isinstance(each, BaseExceptionGroup):
            waiting += cast("Iterable[BaseException]", each.exceptions)


def _start(program: ProgramCommand, main: ModuleType) -> None:
    sys.argv[:] = [program.target, *program.arguments]
    if program.module:
        sys.argv[0] = "-m"  # as long as it is being looked for
        _first_on_path(str(Path.cwd()))
        _runpy("_run_module_as_main")(program.target)
    elif (path := Path(program.target)).is_dir() or _is_archive(path):
        _first_on_path(program.target)
        _runpy("_run_module_as_main")("__main__", alter_argv=False)
    else:
        _first_on_path(str(path.resolve().parent))
        main.__file__ = os.path.abspath(path)  # noqa: PTH100 - links stay links, as in Python
        main.__loader__ = _Script("__main__", main.__file__)
        main.__loader__.exec_module(main)


class _Script(SourceFileLoader):
    """Compiles anew, and leaves no ``__pycache__`` beside a script."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def _runpy(name: str) -> Callable[..., Any]:
    """What ``python -m`` itself calls; no public function keeps ``__main__`` in place after the end."""
    return getattr(importlib.import_module("runpy"), name)


def _fresh_main() -> ModuleType:
    main = ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={}, __cached__=None, __package__=None)
    sys.modules["__main__"] = main
    return main


def _first_on_path(folder: str) -> None:
    """Put a folder in the place where Python put that of the `trueloop` command."""
    if not sys.flags.safe_path:
        sys.path[:1] = [folder]


def _is_archive(path: Path) -> bool:
    import zipfile

    return path.suffix != ".py" and zipfile.is_zipfile(path)


def _exit_code(leave: SystemExit) -> int:
    """Do what Python does with ``sys.exit("a message")``."""
    if leave.code is None or isinstance(leave.code, int):
        return int(leave.code or 0)
    print(leave.code, file=sys.stderr)  # noqa: T201
    return 1


def _print(error: BaseException) -> None:
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except BaseException as broken:  # noqa: BLE001 - the program's own hook
        print("Error in sys.excepthook:", file=sys.stderr)  # noqa: T201
        traceback.print_exception(broken)
        print("\nOriginal exception was:", file=sys.stderr)  # noqa: T201
        traceback.print_exception(error)


def _finish(before: set[threading.Thread]) -> None:
    """Wait for the threads that the program left running, as Python does before it runs exit functions."""
    if any(not thread.daemon for thread in set(threading.enumerate()) - before):
        # Not a join of each: a pool's threads wait to be told, by this, that the end has come.
        getattr(threading, "_shutdown")()  # noqa: B009


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    kept: list[TracebackType] = []
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not (name.startswith(_OURS) or (not kept and name.startswith((_LOADING, __file__)))):
            kept.append(trace)
        trace = trace.tb_next
    for each, following in pairwise([*kept, None]):
        if each is not None:
            each.tb_next = following
    return kept[0] if kept else None
