"""Replaces functions of torch, and puts them back.

A replacement is a plain function that passes everything on. It stays on classes and modules of torch, never on an
object of the user's: those can still be pickled, copied and exported.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any, Final, NamedTuple, cast

MISSING: Any = object()
REPLACEMENT: Final = "the replacement"
HIDDEN_FILE: Final = "<trueloop, unseen by warnings as importlib._bootstrap is>"
"""The file that replacements say they come from. Where Python counts the frames of a warning's ``stacklevel``, it
leaves out those whose file has "importlib" and "_bootstrap" in its name: torch's warnings name the program's lines."""


class Patches:
    """Some replaced attributes, to be put back together."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        """What puts each of them back, if it is still there; noted before anything is replaced."""
        self._swaps: dict[FunctionType, _Swap] = {}

    def replace(self, owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
        """Put ``make(original)`` in the place of an attribute.

        Args:
            owner: a class or module.
            name: of a function in it, own or inherited.
            make: gets the original, returns the function to put there; it must look for itself whether anybody still
                listens, since it stays in use where somebody else has wrapped it meanwhile.

        Raises:
            TypeError: what the program has put there is not called as a method is, such as a mock: it stays as it is.
        """
        if isinstance(owner, type) and not hasattr(type(inspect.getattr_static(owner, name)), "__get__"):
            raise TypeError(f"the program has put something in the place of {owner.__name__}.{name}")
        own = vars(owner).get(name, MISSING)
        original = getattr(owner, name)
        replacement = functools.wraps(original)(make(original))
        _hide(replacement, original)

        def undo() -> None:
            if vars(owner).get(name, MISSING) is not replacement:
                return
            if own is MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, own)

        self._undo.append(undo)
        setattr(owner, name, replacement)

    def swap_code(self, function: FunctionType, make: Callable[[Any], Callable[..., Any]]) -> None:
        """Put ``make(original)`` in the place of a function wherever it has been imported to by name.

        The function stays the same object and keeps its signature and source, so that TorchScript still compiles it and
        nothing that compares functions sees a difference.

        Args:
            function: a plain function of a module, without a closure or keyword-only parameters.
            make: as for `replace`; gets a function that does what this one did. Asked once: what is put in place again
                and again is the same each time, since dynamo compiles anew whatever it has not seen before.
        """
        swap = self._swaps.get(function)
        if swap is None or swap.code is not function.__code__:
            swap = self._swaps[function] = _Swap.of(function, make)

        def undo() -> None:
            if function.__code__ is swap.through:
                function.__code__ = swap.code
                function.__dict__.pop("__wrapped__", None)

        self._undo.append(undo)
        function.__code__ = swap.through
        function.__dict__["__wrapped__"] = swap.original  # whose source TorchScript reads

    def replace_inner(self, decorated: Callable[..., Any], make: Callable[[Any], Callable[..., Any]]) -> None:
        """Put ``make(original)`` in the place of the function that a decorator of torch's has wrapped.

        The decorated function stays the same object, so this reaches whoever has imported it by name.

        Args:
            decorated: holds the original in its closure.
            make: as for `replace`.
        """
        for cell in cast("Any", decorated).__closure__ or ():
            original = cell.cell_contents
            if isinstance(original, FunctionType) and original.__name__ == decorated.__name__:
                replacement = functools.wraps(original)(make(original))
                _hide(replacement, original)
                self._undo.append(functools.partial(_put_back, cell, original, replacement))
                cell.cell_contents = replacement

    def add_handle(self, handle: Any) -> None:
        """Take off a hook of torch's own together with the rest."""
        self._undo.append(handle.remove)

    def restore(self) -> None:
        """Put back everything that is still as it was put there; called again, go on where Ctrl-C has interrupted."""
        while self._undo:
            self._undo[-1]()
            self._undo.pop()


class _Swap(NamedTuple):
    """What is put in the place of a function's code.

    It holds the replacement as a constant of its own: a thread that is within it runs to its end while another one
    puts the code back.
    """

    code: CodeType
    through: CodeType
    original: FunctionType

    @classmethod
    def of(cls, function: FunctionType, make: Callable[[Any], Callable[..., Any]]) -> _Swap:
        code = function.__code__
        original = FunctionType(code, function.__globals__, function.__name__, function.__defaults__)
        original.__annotations__ = function.__annotations__
        replacement = make(original)
        _hide(replacement, original)
        through = _through.__code__
        constants = tuple(replacement if each == REPLACEMENT else each for each in through.co_consts)
        through = through.replace(
            co_argcount=code.co_argcount, co_nlocals=code.co_argcount, co_varnames=code.co_varnames[: code.co_argcount],
            co_consts=constants, co_name=code.co_name, co_qualname=code.co_qualname,
            co_filename=HIDDEN_FILE, co_firstlineno=code.co_firstlineno,
        )  # fmt: skip
        return cls(code, through, original)


def _put_back(cell: Any, original: Any, replacement: Any) -> None:
    if cell.cell_contents is replacement:
        cell.cell_contents = original


def _through() -> Any:
    """The code of a swapped function, but for its parameters and what it calls: Python refuses to call a bare text."""
    return (locals and "the replacement")(*locals().values())  # pyright: ignore[reportCallIssue]


def _hide(replacement: Callable[..., Any], original: Any) -> None:
    """Keep a replacement out of what torch compiles and of what warnings count."""
    if isinstance(replacement, FunctionType):
        file = replacement.__code__.co_filename
        beside = [cell.cell_contents for cell in replacement.__closure__ or ()]
        for each in (replacement, *beside):
            if isinstance(each, FunctionType) and each is not original and each.__code__.co_filename == file:
                each.__code__ = _unseen(each.__code__)
    hide_from_compiler(replacement)


@functools.cache
def _unseen(code: CodeType) -> CodeType:
    return code.replace(co_filename=HIDDEN_FILE)


def hide_from_compiler(function: Callable[..., Any]) -> None:
    """Let torch.compile run a function of ours as it is, wherever it meets it.

    Asking ``is_compiling()`` is not enough: after a graph break dynamo compiles the frames of a wrapper themselves, in
    which that is a constant True, and what the wrapper should tell is never told.
    """
    if isinstance(function, FunctionType):
        for code in _codes(function.__code__):
            _skip(code)


@functools.cache
def hide_package(package: str) -> None:
    """Do so with every function and method of a package that is loaded by now."""
    for name, module in list(sys.modules.items()):
        if name == package or name.startswith(package + "."):
            for value in list(vars(module).values()):
                if getattr(value, "__module__", None) == name:
                    for function in (value, *(vars(value).values() if isinstance(value, type) else ())):
                        hide_from_compiler(getattr(function, "fget", None) or getattr(function, "__func__", function))


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _choose_skip() -> Callable[[CodeType], None]:
    frames: Any = importlib.import_module("torch._C._dynamo.eval_frame")
    if hasattr(frames, "skip_code"):
        return cast("Callable[[CodeType], None]", frames.skip_code)
    if hasattr(frames, "set_code_exec_strategy"):
        strategy = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)  # noqa: SLF001

        def skip(code: CodeType) -> None:
            frames.set_code_exec_strategy(code, strategy)

        return skip
    return lambda code: None


def _choose_compiler() -> Callable[[Any], Any]:
    frames: Any = importlib.import_module("torch._C._dynamo.eval_frame")
    return cast("Callable[[Any], Any]", frames.set_eval_frame)


_skip = _choose_skip()
set_compiler = _choose_compiler()
"""Says what compiles the frames that run on this thread, None for nothing, and returns what did so far. While a program
runs compiled, torch's own functions that we call would be compiled too."""
