"""Finds the variable that holds the sum of an epoch's losses, and the number that the program divides it by."""

import ast
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, ClassVar, Final, cast

from torch import Tensor
from torch.utils.data import DataLoader

from trueloop.core.findings import SourceLocation
from trueloop.core.source_text import nodes_in
from trueloop.failures.loss.epoch_mean_wrong import EpochLossDivided
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import BackwardEnded, BatchLoaded, Event, LoaderExhausted, LoaderStarted, Ref, StepTaken
from trueloop.tracing.frame_variables import variables
from trueloop.tracing.loader_pass import batch_columns
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.source_calls import tree_of
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import user_frame

TOLERANCE: Final = 1e-4  # of sums that a program may compute in float32
MIN_BATCHES: Final = 3


@dataclass(slots=True)
class _Epoch:
    """The losses of one pass over a loader."""

    loader: Ref
    sizes: list[int] = field(default_factory=list[int])
    losses: list[float] = field(default_factory=list[float])
    has_sum: bool = False
    """Whether a loss is not a mean."""
    steps: int = 0


class EpochLosses(Hook):
    """Emits `EpochLossDivided`.

    Cost: 1 us for each fully traced batch and backward pass; 1 ms at the end of an epoch that was fully traced.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (EpochLossDivided,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream = stream
        self._epoch: _Epoch | None = None
        self._record = stream.isolated_inner("sums of losses", self._on_event)

    def install_always(self, patches: Patches) -> None:
        """Receive the batches and losses."""
        self._epoch = None
        patches.add_undo(lambda: self._stream.unsubscribe(self._record))
        self._stream.subscribe(self._record, LoaderStarted, BatchLoaded, BackwardEnded, StepTaken, LoaderExhausted)

    def _on_event(self, event: Any) -> None:
        epoch = self._epoch
        if isinstance(event, LoaderStarted):
            self._epoch = _Epoch(event.loader)
        elif epoch is None:
            return
        elif isinstance(event, BatchLoaded):
            column = next(batch_columns(event.batch), None) if event.loader is epoch.loader else None
            epoch.sizes.append(0 if column is None else len(column[1]))
        elif isinstance(event, StepTaken):
            epoch.steps += 1
        elif isinstance(event, BackwardEnded):
            epoch.losses.append(math.nan if event.root_value is None else event.root_value)
            epoch.has_sum |= any(each.reduction != "mean" for each in event.losses) or not event.losses
        elif event.loader is epoch.loader:
            self._epoch = None
            if MIN_BATCHES <= event.batches == len(epoch.sizes) == len(epoch.losses) and all(epoch.sizes):
                self._search(epoch)

    def _search(self, epoch: _Epoch) -> None:
        if epoch.steps < len(epoch.losses):  # losses of accumulated batches are divided, and may be multiplied again
            return
        frame = user_frame()
        if frame is None:
            return
        sums = sum(epoch.losses), sum(loss * size for loss, size in zip(epoch.losses, epoch.sizes, strict=True))
        values = variables(frame)
        found: list[tuple[str, float, bool]] = []
        for name, value in list(values.items()):
            number = _number(value)
            matches = [number is not None and math.isclose(number, each, rel_tol=TOLERANCE) for each in sums]
            if number is not None and matches.count(True) == 1 and not (matches[0] and epoch.has_sum):
                found.append((name, number, matches[1]))
        tree = tree_of(frame.f_code.co_filename, "/") if found else None
        if tree is None:
            return
        for name, number, is_weighted in found:
            for node, divisor in _divisions(tree, frame, name):
                size = _evaluate(divisor, {**frame.f_globals, **values})
                if size:
                    self._stream.emit(EpochLossDivided(
                        name=name, divided_at=SourceLocation(frame.f_code.co_filename, node.lineno), divisor=size,
                        divisor_text=ast.unparse(divisor), is_weighted=is_weighted, batches=len(epoch.sizes),
                        samples=sum(epoch.sizes), total=number,
                    ))  # fmt: skip


def _number(value: Any) -> float | None:
    """Return the value of a number or of a scalar tensor on the CPU; None for anything else."""
    if type(value) is float or (isinstance(value, float) and type(value).__module__ == "numpy"):
        return float(value)
    if type(value) is Tensor and not value.ndim and value.is_cpu and value.is_floating_point():
        return value.item()
    return None


def _divisions(tree: ast.Module, frame: FrameType, name: str) -> Iterator[tuple[ast.stmt, ast.expr]]:
    """Yield each statement of the running function that divides a variable, after the current line, and the divisor."""
    first, lines = frame.f_code.co_firstlineno, [line for *_, line in frame.f_code.co_lines() if line]
    for node in nodes_in(tree, ast.stmt):
        if not frame.f_lineno < node.lineno <= max(lines) or node.lineno < first:
            continue
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div) and ast.unparse(node.target) == name:
            yield node, node.value
        elif isinstance(node, ast.Assign | ast.Expr | ast.Return | ast.AnnAssign):
            for part in nodes_in(node, ast.BinOp):
                if isinstance(part.op, ast.Div) and _is_name(part.left, name):
                    yield node, part.right


def _is_name(node: ast.expr, name: str) -> bool:
    """Return True for a variable, also as ``float(name)`` or ``name.item()``."""
    return ast.unparse(node) in (name, f"float({name})", f"{name}.item()")


def _evaluate(node: ast.expr, values: Mapping[str, Any]) -> float | None:
    """Return the value of a number, or of ``len`` of something; None for any other expression."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "len" and len(node.args) == 1:
        value = _resolve(node.args[0], values)
        return float(len(value)) if hasattr(type(value), "__len__") else None
    value: Any = node.value if isinstance(node, ast.Constant) else _resolve(node, values)
    return float(value) if type(value) in (int, float) else None


def _resolve(node: ast.expr, values: Mapping[str, Any]) -> Any:
    """Return the value of a variable or of an object's own attribute, such as ``loader.dataset``."""
    if isinstance(node, ast.Name):
        return values.get(node.id)
    if not isinstance(node, ast.Attribute):
        return None
    value = _resolve(node.value, values)
    own = cast("dict[str, Any]", getattr(value, "__dict__", {}))
    return own.get(node.attr, getattr(value, node.attr, None) if isinstance(value, DataLoader) else None)


HOOK: Final = EpochLosses
