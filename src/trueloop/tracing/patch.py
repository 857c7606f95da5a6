"""Replaces functions of PyTorch, and restores them.

A replacement is a plain function that passes on all arguments. It is set on classes and modules of PyTorch, never on
objects of the user, so these can still be pickled, copied and exported.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any, Final, NamedTuple, cast

MISSING: Any = object()
REPLACEMENT: Final = "the replacement"
HIDDEN_FILE: Final = "<trueloop, hidden from warnings as importlib._bootstrap is>"
"""File name of replacements. Python does not count frames with "importlib" and "_bootstrap" in their file name for the
``stacklevel`` of a warning, so PyTorch's warnings still name the program's lines."""


class Patches:
    """A set of replaced attributes that are restored together."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        """Functions that restore one attribute each if it is still replaced; added before the replacement."""
        self._swaps: dict[FunctionType, _Swap] = {}
        self._made: dict[tuple[Any, str, Any], tuple[Any, Any]] = {}
        """Owner, name and method that makes a replacement -> the latest original and its replacement."""

    def replace(self, owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
        """Replace an attribute by ``make(original)``.

        Args:
            owner: a class or module.
            name: name of a function of the owner, possibly inherited.
            make: returns the replacement of the original. The replacement must check that tracing is active, since
                it remains in use if other code has wrapped it. A method is called once for each original: later
                replacements are the same function.

        Raises:
            TypeError: the program has set an object that is not a function, such as a mock; it is unchanged.

        Cost: 60 us, and 3 us if the function was replaced before.
        """
        own = vars(owner).get(name, MISSING)
        original = getattr(owner, name)
        known, replacement = self._made.get((owner, name, make), (MISSING, None))
        if known is not original:
            replacement = _replacement_of(owner, name, original, make)
            if isinstance(make, MethodType):
                self._made[owner, name, make] = original, replacement

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
        """Replace the code of a function by ``make(original)``, which has an effect also where it was imported by name.

        The function remains the same object with the same signature and source code, so TorchScript still compiles it,
        and comparisons of functions have the same result.

        Args:
            function: a plain function of a module, without a closure or keyword-only parameters.
            make: as for `replace`, with a copy of the function as the original. Called once: later replacements use
                the same code, since dynamo recompiles code that is new.
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
        function.__dict__["__wrapped__"] = swap.original  # TorchScript reads its source code

    def replace_inner(self, decorated: Callable[..., Any], make: Callable[[Any], Callable[..., Any]]) -> None:
        """Replace the function within a PyTorch decorator by ``make(original)``.

        The decorated function remains the same object, so this works where it was imported by name.

        Args:
            decorated: the decorated function, whose closure contains the original.
            make: as for `replace`.
        """
        for cell in cast("Any", decorated).__closure__ or ():
            original = cell.cell_contents
            if isinstance(original, FunctionType) and original.__name__ == decorated.__name__:
                replacement = functools.wraps(original)(make(original))
                _hide(replacement, original)
                self._undo.append(functools.partial(_restore_cell, cell, original, replacement))
                cell.cell_contents = replacement

    def add_handle(self, handle: Any) -> None:
        """Remove a PyTorch hook together with the other patches."""
        self._undo.append(handle.remove)

    def add_undo(self, undo: Callable[[], None]) -> None:
        """Call a function when the other patches are removed; after Ctrl-C, it may be called twice."""
        self._undo.append(undo)

    def restore(self) -> None:
        """Restore all attributes that are still replaced; after Ctrl-C, a second call continues."""
        while self._undo:
            self._undo[-1]()
            self._undo.pop()


class _Swap(NamedTuple):
    """The replaced code of a function.

    The new code has the replacement as a constant, so a thread can finish running it while another thread restores the
    function.
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
        _skip(through)  # called after a graph break, as for ``torch.autograd.grad``
        return cls(code, through, original)


def _replacement_of(owner: Any, name: str, original: Any, make: Callable[[Any], Callable[..., Any]]) -> Any:
    if isinstance(owner, type) and not hasattr(type(inspect.getattr_static(owner, name)), "__get__"):
        raise TypeError(f"the program has replaced {owner.__name__}.{name} by an object that is not a function")
    replacement = functools.wraps(original)(make(original))
    _hide(replacement, original)
    return replacement


def _restore_cell(cell: Any, original: Any, replacement: Any) -> None:
    if cell.cell_contents is replacement:
        cell.cell_contents = original


def _through() -> Any:
    """Provide the code of swapped functions, in which the parameters and the called constant are then replaced."""
    return (locals and "the replacement")(*locals().values())  # pyright: ignore[reportCallIssue]


def _hide(replacement: Callable[..., Any], original: Any) -> None:
    """Exclude a replacement from torch.compile, and from the frames that ``stacklevel`` of a warning counts."""
    if isinstance(replacement, FunctionType):
        file = replacement.__code__.co_filename
        closure = [cell.cell_contents for cell in replacement.__closure__ or ()]
        for each in (replacement, *closure):
            if isinstance(each, FunctionType) and each is not original and each.__code__.co_filename == file:
                each.__code__ = _with_hidden_file(each.__code__)
    hide_from_compiler(replacement)


@functools.cache
def _with_hidden_file(code: CodeType) -> CodeType:
    return code.replace(co_filename=HIDDEN_FILE)


def hide_from_compiler(function: Callable[..., Any]) -> None:
    """Exclude an internal function from torch.compile.

    Checking ``is_compiling()`` is not enough: after a graph break dynamo compiles the frames of a wrapper, where it is
    always True, and the wrapper would emit nothing.
    """
    if isinstance(function, FunctionType):
        for code in _codes(function.__code__):
            _skip(code)


@functools.cache
def hide_package(package: str) -> None:
    """Exclude all functions and methods in the loaded modules of a package from torch.compile."""
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
"""Sets the frame compiler of this thread (None: no compiler), and returns the previous one. With the compiler of a
compiled program, the PyTorch functions that hooks call would be compiled too."""
