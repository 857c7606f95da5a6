"""Runs a program in this process as ``python script.py``, ``python -m package.module`` or Jupyter would."""

import ast
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

from trueloop.core.notebook import NotANotebook, Notebook

_PACKAGE = Path(__file__).resolve().parents[1]
_HIDDEN_PARTS = ("tracing", "failures", "reporting", "cli", "app/sanitizer/watch.py")
_HIDDEN = ("<trueloop", *(str(_PACKAGE / part) for part in _HIDDEN_PARTS))
"""Files of trueloop whose frames are removed from tracebacks: those between the program and PyTorch, or between the
terminal and the program. `Trainer` is not among them, since its users want to see its lines."""
_IMPORT_FRAMES = "<frozen importlib"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramCommand:
    """The program to run."""

    target: str
    """A file, a notebook, a folder or archive with a ``__main__.py``, or a module name, as typed by the user."""
    arguments: tuple[str, ...] = ()
    module: bool = False
    """Whether ``target`` is a module name."""


class ProgramResult(NamedTuple):
    """The exit code of a program, and the exception that left it."""

    code: int
    """Exit code with which Python would have ended."""
    error: BaseException | None
    """The exception that left the program; None after an exit."""


def run_program(
    program: ProgramCommand, *, on_error: Callable[[BaseException], None] = lambda error: None
) -> ProgramResult:
    """Run a program until it and its threads have ended, and print the traceback that Python would print.

    ``sys.argv``, ``sys.path`` and ``__main__`` remain the program's, since its threads, exit functions and pickles need
    them. Call this once per process, at its end: if the program left threads running, pools accept no work afterwards.

    Args:
        program: the program to run.
        on_error: called with an exception that left the program, before its traceback is printed.
    """
    threads = set(threading.enumerate())
    main = _fresh_main()
    try:
        _execute(program, main)
        ended = ProgramResult(0, None)
    except SystemExit as leave:
        ended = ProgramResult(_exit_code(leave), None)
    except BaseException as error:  # noqa: BLE001 - any exception of the program is printed, as Python does
        trace = error.__traceback__
        error.__traceback__ = trace and trace.tb_next  # without this frame
        on_error(error)
        hide_internal_frames(error)
        _print_error(error)
        ended = ProgramResult(130 if isinstance(error, KeyboardInterrupt) else 1, error)
    try:
        _join_threads(threads)
    except KeyboardInterrupt:  # Python ends here too, with the code of an interruption
        return ended._replace(code=130)
    return ended


def hide_internal_frames(error: BaseException) -> None:
    """Remove trueloop's frames, and those that loaded the program, from the tracebacks of an error and its causes."""
    pending, seen = [error], set[int]()
    while pending:
        each = pending.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        each.__traceback__ = _strip_trace(each.__traceback__)
        pending += [other for other in (each.__cause__, each.__context__) if other is not None]
        if isinstance(each, BaseExceptionGroup):
            pending += cast("Iterable[BaseException]", each.exceptions)


def _execute(program: ProgramCommand, main: ModuleType) -> None:
    sys.argv[:] = [program.target, *program.arguments]
    if program.module:
        sys.argv[0] = "-m"  # until the module is found
        _first_on_path(str(Path.cwd()))
        _runpy_function("_run_module_as_main")(program.target)
    elif (path := Path(program.target)).is_dir() or _is_archive(path):
        _first_on_path(program.target)
        _runpy_function("_run_module_as_main")("__main__", alter_argv=False)
    elif path.suffix == ".ipynb":
        _run_notebook(path.absolute(), main)
    else:
        _first_on_path(str(path.resolve().parent))
        main.__file__ = os.path.abspath(path)  # noqa: PTH100 - Python does not resolve links either
        main.__loader__ = _ScriptLoader("__main__", main.__file__)
        main.__loader__.exec_module(main)


def _run_notebook(path: Path, main: ModuleType) -> None:
    """Run the code cells of a notebook in their order, as Jupyter does: in its folder, with the last value shown.

    What only Jupyter runs, magics and shell commands, is skipped. Plots are drawn, but no window opens.
    """
    try:
        notebook = Notebook(path.read_text("utf-8"))
    except NotANotebook as error:
        sys.exit(f"{path}: {error}")
    if skipped := notebook.skipped_lines:
        shown = ", ".join(f"`{line[:40]}`" for line in skipped[:3]) + ", ..." * (len(skipped) > 3)
        print(f"trueloop: skipped what only Jupyter runs: {shown}", file=sys.stderr)  # noqa: T201
    for _, problem in notebook.invalid_cells:
        print(f"trueloop: skipped {problem}", file=sys.stderr)  # noqa: T201
    os.chdir(path.parent)
    _first_on_path(str(path.parent))
    os.environ.setdefault("MPLBACKEND", "Agg")
    if sys.excepthook is sys.__excepthook__:  # which shows no lines of cells, as it knows files only
        sys.excepthook = traceback.print_exception
    main.__file__ = str(path)
    main.__dict__.update(display=_display, __show_value__=_show_value)
    for cell, code in zip(notebook.cells, notebook.codes, strict=True):
        cell.cache_lines(str(path), code)
    for cell, code in zip(notebook.cells, notebook.codes, strict=True):
        _CellLoader(code, cell.file_in(str(path))).exec_module(main)


def _show_value(value: object) -> None:
    if value is not None:
        _display(value)


def _display(*values: object, **options: object) -> None:
    """Print values, as the function of this name does that each notebook has."""
    for value in values:
        print(repr(value))  # noqa: T201


class _CellLoader(SourceFileLoader):
    """Compiles a cell of a notebook, so that it shows the value of its last line."""

    def __init__(self, code: str, file: str) -> None:
        super().__init__("__main__", file)
        self._code = code

    def get_code(self, fullname: str) -> CodeType:
        tree = ast.parse(self._code, self.path)
        last = tree.body[-1] if tree.body else None
        if isinstance(last, ast.Expr) and not self._code.rstrip().endswith(";"):
            show = ast.copy_location(ast.Name("__show_value__", ast.Load()), last)
            last.value = ast.copy_location(ast.Call(show, [last.value], []), last)
        return compile(tree, self.path, "exec")


class _ScriptLoader(SourceFileLoader):
    """Compiles a script without writing a ``__pycache__``."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def _runpy_function(name: str) -> Callable[..., Any]:
    """Return a private function of runpy, as the public ones remove ``__main__`` when the program ends."""
    return getattr(importlib.import_module("runpy"), name)


def _fresh_main() -> ModuleType:
    main = ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={}, __cached__=None, __package__=None)
    sys.modules["__main__"] = main
    return main


def _first_on_path(folder: str) -> None:
    """Put a folder first on ``sys.path``, in place of the folder of the `trueloop` command."""
    if not sys.flags.safe_path:
        sys.path[:1] = [folder]


def _is_archive(path: Path) -> bool:
    import zipfile

    return path.suffix != ".py" and zipfile.is_zipfile(path)


def _exit_code(leave: SystemExit) -> int:
    """Return the exit code; print the message of ``sys.exit("a message")``, as Python does."""
    if leave.code is None or isinstance(leave.code, int):
        return int(leave.code or 0)
    print(leave.code, file=sys.stderr)  # noqa: T201
    return 1


def _print_error(error: BaseException) -> None:
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except BaseException as broken:  # noqa: BLE001 - the program's own hook
        print("Error in sys.excepthook:", file=sys.stderr)  # noqa: T201
        traceback.print_exception(broken)
        print("\nOriginal exception was:", file=sys.stderr)  # noqa: T201
        traceback.print_exception(error)


def _join_threads(before: set[threading.Thread]) -> None:
    """Wait for the threads that the program left running, as Python does before exit functions."""
    if any(not thread.daemon for thread in set(threading.enumerate()) - before):
        # Joining each thread is not enough: the threads of a pool wait for this signal.
        getattr(threading, "_shutdown")()  # noqa: B009


def _strip_trace(trace: TracebackType | None) -> TracebackType | None:
    visible: list[TracebackType] = []
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not (name.startswith(_HIDDEN) or (not visible and name.startswith((_IMPORT_FRAMES, __file__)))):
            visible.append(trace)
        trace = trace.tb_next
    for each, following in pairwise([*visible, None]):
        if each is not None:
            each.tb_next = following
    return visible[0] if visible else None
