"""Reads the padding of labels that the program compares with predictions."""

import ast
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, ClassVar, Final

import torch
from torch import Tensor

from trueloop.analysis.queries.batch_loops import compared_sides
from trueloop.core.findings import CodePosition
from trueloop.core.source_text import children, encloses, nodes_in
from trueloop.failures.evaluation.padding_judged import PaddingCompared
from trueloop.failures.evaluation.padding_judged.positions_in_text import counts_all
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import BackwardLosses, BackwardStarted, Event, LossEvaluated
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.row_digests import has_storage
from trueloop.tracing.source_calls import expression_at, tree_of
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import user_frame, user_location

MAX_LOSSES: Final = 64  # events of losses whose ignored label is read
MAX_PLACES: Final = 64  # comparisons of the program
MAX_READS: Final = 8  # of the labels of one comparison, until one contains padding
MIN_SHARE: Final = 0.02  # of padding; less hardly changes an accuracy
NEAR: Final = 8  # lines between the start of a frame's statement and a comparison in it
_FUNCTIONS: Final = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Module


class ComparedPadding(Hook):
    """Emits `PaddingCompared`.

    Cost: 1 us for each comparison of two integer tensors; for the first 8 of each line that counts all positions
    0.1 ms, and a synchronisation with a GPU.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (PaddingCompared,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._ignored = set[int]()
        self._losses = 0
        self._places: dict[CodePosition | None, tuple[int, str]] = {}
        """Line of a comparison -> number of times that it was read, and its text; MAX_READS = it is not read again."""
        self._record = stream.isolated_inner("ignored labels", self._on_loss)
        self._compare = stream.isolated("compared labels", self._on_compared)

    def install_always(self, patches: Patches) -> None:
        """Receive the losses and comparisons."""
        self._ignored.clear()
        self._places.clear()
        self._losses = 0
        for name in ("eq", "__eq__"):
            patches.replace(Tensor, name, self._comparison)
        patches.add_undo(partial(self._stream.unsubscribe, self._record))
        self._stream.subscribe(self._record, BackwardStarted, BackwardLosses, LossEvaluated)

    def _on_loss(self, event: BackwardStarted | BackwardLosses | LossEvaluated) -> None:
        losses = [event.live_loss] if isinstance(event, LossEvaluated) else event.losses
        found = {each.ignore_index for each in losses if each.ignore_index is not None}
        self._losses += bool(losses)
        if len(self._ignored | found) <= 4:
            self._ignored |= found
        if self._losses >= MAX_LOSSES:
            self._stream.unsubscribe(self._record)

    def _comparison(self, original: Callable[..., Any]) -> Callable[..., Any]:
        stream, on_compared, ignored = self._stream, self._compare, self._ignored

        def compare(tensor: Any, other: Any, *args: Any, **options: Any) -> Any:
            if ignored and stream.active and type(tensor) is Tensor is type(other) and tensor.dtype is torch.int64:
                on_compared(tensor, other)
            return original(tensor, other, *args, **options)

        return compare

    def _on_compared(self, tensor: Tensor, other: Tensor) -> None:
        location = user_location()
        reads, text = self._places.get(location, (0, ""))
        if reads >= MAX_READS or tensor.shape != other.shape or other.dtype is not torch.int64 or tensor.numel() < 8:
            return
        if len(self._places) >= MAX_PLACES or self._program.is_other_thread():
            return
        if location is None or not (has_storage(tensor) and has_storage(other)):
            return
        text = text or _comparison_of_all_positions(user_frame())
        self._places[location] = (reads + 1 if text else MAX_READS, text)
        found = [self._padding(each) for each in (tensor, other)] if text else []
        ignored, count = max(found, key=lambda each: each[1], default=(0, 0))
        if count >= MIN_SHARE * tensor.numel() and count and min(found, key=lambda each: each[1])[1] < count:
            self._places[location] = MAX_READS, text
            self._stream.emit(PaddingCompared(
                location=location, text=text, ignored=ignored, positions=tensor.numel(), padding=count,
            ))  # fmt: skip

    def _padding(self, labels: Tensor) -> tuple[int, int]:
        """Return the ignored label that labels contain, and how often; (0, 0) if it is none.

        A label from 0 up may be a class too: it is padding only if it fills up rows of several lengths.
        """
        for ignored in self._ignored:
            base = labels._base  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            is_flat = labels.dim() == 1 and base is not None and base.numel() == labels.numel()
            rows = base.detach() if is_flat and base is not None else labels.detach()
            is_padding = torch.eq(rows, ignored)
            if ignored < 0 or _fills_up_rows(is_padding):
                count = int(is_padding.sum())
                if count:
                    return ignored, count
        return 0, 0


def _fills_up_rows(is_padding: Tensor) -> bool:
    """Return True if padding follows all real positions in each row, from different positions on."""
    if is_padding.dim() != 2 or len(is_padding) < 2:
        return False
    counts = is_padding.sum(1)
    follows = bool((is_padding.long().diff(dim=1) >= 0).all())
    return follows and bool(counts.max() > counts.min()) and bool(counts.max() < is_padding.shape[1])


def _comparison_of_all_positions(frame: FrameType | None) -> str:
    """Return the source code of the comparison of a frame if its hits are divided by all positions; else ""."""
    like = None if frame is None else expression_at(frame)
    tree = None if frame is None or like is None else tree_of(frame.f_code.co_filename)
    if frame is None or like is None or tree is None or len(compared_sides(like)) != 2:
        return ""
    text = ast.dump(like)
    near = [each for each in nodes_in(tree, type(like)) if abs(each.lineno - frame.f_lineno) <= NEAR]
    node = next((each for each in near if ast.dump(each) == text), None)
    scopes = [each for each in nodes_in(tree, ast.AST) if isinstance(each, _FUNCTIONS)]
    if node is None:
        return ""
    scope = [each for each in scopes if isinstance(each, ast.Module) or encloses(each, node)][-1]
    parents = {id(inner): outer for outer in ast.walk(scope) for inner in children(outer)}
    sides = compared_sides(node)
    names = {ast.unparse(each) for each in sides}
    names |= {each.id for side in sides for each in nodes_in(side, ast.Name)}
    return ast.unparse(node) if counts_all(parents, scope, node, names) else ""


HOOK: Final = ComparedPadding
