"""Traces functional dropout: whether it is applied, and whether the call passes the mode of a module."""

import ast
import sys
from collections.abc import Callable, Iterator
from types import FrameType, FunctionType
from typing import Any, ClassVar, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trueloop.core.findings import CodePosition
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import Event, ModelCalled
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.source_calls import call_at, calls_in, resolve_global
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import is_user_code
from trueloop.tracing.weak_id_dict import WeakIdDict

FUNCTIONS: Final = (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d)
"""Functions whose ``training`` defaults to True, unlike that of ``alpha_dropout``."""
TRAINING: Final = 2  # position of ``training`` among the parameters

BY_MODE: Final = "by mode"
"""Kind of a call that passes the mode of a module, such as ``training=self.training``."""

WORDS: Final = ("functional", "dropout")  # a file without these words calls no functional dropout

_is_compiling: Callable[[], bool] = torch.compiler.is_compiling


class Dropouts(Hook):
    """Records during full tracing where dropout depends on its module's mode, and where it does not get the mode.

    PyTorch's functions are replaced only if a model calls one of them without ``training`` or with a module's mode, and
    they remain replaced, since dynamo recompiles code whose functions change. The ``training`` argument is read from
    the source code of the call, once for each line.

    Cost: once 10 us for each line of a file that names functional dropout and defines a module. If the functions are
    replaced, 0.6 us for each call, and 15 us for a fully traced call without the flag.
    """

    emits: ClassVar[tuple[type[Event], ...]] = ()

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._patches: Patches | None = None
        """Used to replace PyTorch's functions; None once they are replaced."""
        self._checked_models: WeakIdDict[nn.Module, bool] = WeakIdDict()
        self._irrelevant_files: set[str] = set()
        """Files without a call that is traced."""
        self._call_kinds: dict[CodePosition, str] = {}
        """Position of a call -> its kind, as returned by `_kind`; "" = not traced."""
        self._trace_call = stream.isolated("functional dropout", self._on_call)
        self._check = stream.isolated_inner("functional dropout", self._check_source)

    def install_always(self, patches: Patches) -> None:
        """Wait for models that call the functions; only then are the functions replaced."""
        self._patches = patches
        self._stream.subscribe(self._check, ModelCalled)
        patches.add_handle(self)
        self._checked_models.clear()
        self._irrelevant_files.clear()
        self._call_kinds.clear()

    def remove(self) -> None:
        """Unsubscribe; called when the hooks are removed."""
        self._stream.unsubscribe(self._check)

    def _check_source(self, event: ModelCalled) -> None:
        """Replace functional dropout if the source code of a newly called model uses it in a way that is traced."""
        model = event.live_module
        if self._patches is None or self._checked_models.get(model):
            return
        self._checked_models.put(model, True)
        modules = list(model.modules())
        classes = {type(module) for module in modules}
        files = dict(each for class_ in classes for each in _sources(class_) if each[0] not in self._irrelevant_files)
        if not files or any(map(_is_compiled, modules)):
            return
        if any(_kind(call, names) for file, names in files.items() for call in calls_in(file, *WORDS)):
            self._replace()
        self._irrelevant_files |= files.keys()

    def _replace(self) -> None:
        with self._stream.lock:
            patches, self._patches = self._patches, None
            if patches is not None and self._stream.active:
                for function in FUNCTIONS:
                    patches.swap_code(function, self._replacement)  # pyright: ignore[reportArgumentType]

    def _replacement(self, original: Callable[..., Any]) -> Callable[..., Any]:
        stream, program, kinds, trace_call = self._stream, self._program, self._call_kinds, self._trace_call

        def dropout(*args: Any) -> Any:
            # This condition comes first, so that dynamo sees no other internal code.
            if (
                args[TRAINING] is True
                and not _is_compiling()
                and stream.full_tracing
                and program.forward_depth
                and stream.active
            ):
                frame = sys._getframe(2)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
                if kinds.get(CodePosition(frame.f_code, frame.f_lasti)) != "" and not program.is_other_thread():
                    trace_call(frame, args[0], args[1])
            return original(*args)

        return dropout

    def _on_call(self, frame: FrameType, tensor: Any, probability: Any) -> None:
        call = CodePosition(frame.f_code, frame.f_lasti)
        kind = self._call_kinds.get(call)
        if kind is None:
            kind = self._call_kinds[call] = _classify_call(frame)
        if not kind or self._program.backward_depth or not isinstance(tensor, Tensor):
            return
        if type(probability) not in (int, float) or not probability > 0:
            return
        if kind == BY_MODE:
            self._program.functional_dropout_active = True
            return
        for report in self._program.on_unflagged_dropout:
            report(frame, kind, tensor, float(probability))


def _classify_call(frame: FrameType) -> str:
    """Return the kind of the call that a frame is executing: see `_kind`."""
    call = call_at(frame) if is_user_code(frame.f_code) else None
    if call is None:
        return ""
    code = frame.f_code
    own = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    return "" if own & set(ast.unparse(call.func).split(".")[:1]) else _kind(call, frame.f_globals)


def _kind(call: ast.Call, names: dict[str, Any]) -> str:
    """Return the function's name if a call does not pass the flag, `BY_MODE` if it passes a module's mode, else ""."""
    function = resolve_global(call.func, names)
    if not any(function is each for each in FUNCTIONS):
        return ""
    if any(isinstance(each, ast.Starred) for each in call.args) or any(word.arg is None for word in call.keywords):
        return ""
    flags = [*call.args[TRAINING : TRAINING + 1], *(word.value for word in call.keywords if word.arg == "training")]
    if not flags:
        return function.__name__
    return BY_MODE if isinstance(flags[0], ast.Attribute) and flags[0].attr == "training" else ""


def _sources(class_: type[nn.Module]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the files of a user class and its user base classes, with the global variables of each file."""
    for each in class_.__mro__:
        for function in vars(each).values():
            if isinstance(function, FunctionType) and is_user_code(function.__code__):
                yield function.__code__.co_filename, function.__globals__


def _is_compiled(module: nn.Module) -> bool:
    return getattr(module, "_compiled_call_impl", None) is not None or hasattr(module, "_orig_mod")
