"""Defines the teaching loop: a short PyTorch training script in named pieces that failures can be injected into.

The pieces are source text, and `TeachingLoop.text` joins them to a complete script. The ``inject`` of a failure
removes, moves or changes one operation.
"""

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, Final, NamedTuple

from trueloop.core.errors import TrueloopError

INDENT: Final = " " * 4


class Piece(StrEnum):
    """Pieces of the script: those before the loop, in this order, and the operations of the loop."""

    SETUP = "setup"
    DATA = "data"
    LOADERS = "loaders"
    MODEL = "model"
    CRITERION = "criterion"
    OPTIMIZER = "optimizer"
    SCHEDULER = "scheduler"
    EVALUATION = "evaluation"
    RECORDS = "records"
    TRAIN_MODE = "train_mode"
    FORWARD = "forward"
    LOSS = "loss"
    RECORD_LOSS = "record_loss"
    DIVIDE_LOSS = "divide_loss"
    BACKWARD = "backward"
    UNSCALE = "unscale"
    CLIP = "clip"
    OPTIMIZER_STEP = "optimizer_step"
    SCHEDULER_STEP = "scheduler_step"
    ZERO_GRAD = "zero_grad"
    EVALUATE = "evaluate"
    KEEP_BEST = "keep_best"


SETUP_PIECES: Final = (Piece.SETUP, Piece.DATA, Piece.LOADERS, Piece.MODEL)
TRAINING_PIECES: Final = (Piece.CRITERION, Piece.OPTIMIZER, Piece.SCHEDULER)


PIECE_SETTINGS: Final[Mapping[Piece, Mapping[str, Any]]] = {
    Piece.DIVIDE_LOSS: {"accumulation": 4},
    Piece.UNSCALE: {"precision": "float16", "clip": 1.0},
    Piece.CLIP: {"clip": 1.0},
    Piece.SCHEDULER: {"schedule": "cosine"},
    Piece.SCHEDULER_STEP: {"schedule": "cosine"},
    Piece.KEEP_BEST: {"keep_best": True},
}
"""Settings of the simulation that add an optional piece to the loop."""


PIECE_DESCRIPTIONS: Final[Mapping[Piece, str]] = {
    Piece.TRAIN_MODE: "line that sets train mode",
    Piece.DIVIDE_LOSS: "line that divides the loss by the size of the window",
    Piece.UNSCALE: "line that unscales gradients",
    Piece.CLIP: "line that clips gradients",
    Piece.SCHEDULER_STEP: "schedule",
    Piece.SCHEDULER: "schedule",
    Piece.ZERO_GRAD: "line that clears gradients",
    Piece.KEEP_BEST: "line that stores the best weights",
}


class CannotInject(TrueloopError):
    """Raised where the loop has no piece that an injection could change.

    Args:
        reason: sentence that names the missing piece.
        settings: fields of the simulation with the values that would add the piece.
    """

    def __init__(self, reason: str, *, fix: str = "", **settings: Any) -> None:
        choice = ", ".join(f"{name} = {value!r}" for name, value in settings.items())
        super().__init__(reason, fix=fix or (f"Choose {choice}." if choice else "Remove one of the failures."))
        self.settings = settings


class ChangedLine(NamedTuple):
    """A line that an injected failure removed, added or changed."""

    line: int
    """Line number in the current text, from 1; for a removed line, the number of the line in its position."""
    kind: str
    """Kind of the change: "left out", "added" or "changed"."""
    before: str
    """Original line; "" for an added line."""
    after: str
    """Current line; "" for a removed line."""


@dataclass(slots=True, kw_only=True)
class TeachingLoop:
    """A training script in pieces. Each piece is one or more lines of source without indentation; "" = nothing."""

    title: str
    """Docstring of the script."""
    imports: list[str]
    """Import statements; `text` sorts them and removes duplicates."""
    pieces: dict[Piece, str]
    batch_loop_head: str = "for inputs, targets in train_loader:"
    """Head of the batch loop."""
    window_condition: str = ""
    """Condition under which an accumulation window is complete; "" = every batch is a window."""
    epoch_context_head: str = ""
    """Head of a block around the batch loop: "with torch.autocast(...):"."""
    epoch_loop_head: str = "for epoch in range(epochs):"
    each_epoch: list[Piece] = field(default_factory=lambda: [Piece.TRAIN_MODE])
    each_batch: list[Piece] = field(
        default_factory=lambda: [
            Piece.FORWARD, Piece.LOSS, Piece.RECORD_LOSS, Piece.DIVIDE_LOSS, Piece.BACKWARD,
        ]
    )  # fmt: skip
    each_window: list[Piece] = field(
        default_factory=lambda: [
            Piece.UNSCALE, Piece.CLIP, Piece.OPTIMIZER_STEP, Piece.SCHEDULER_STEP, Piece.ZERO_GRAD,
        ]
    )  # fmt: skip
    after_epoch: list[Piece] = field(default_factory=lambda: [Piece.EVALUATE, Piece.KEEP_BEST])
    after_training: str = ""
    """Source after the last epoch."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Settings that the script was built from, by name: "batch", "schedule"; for injections."""
    _original: str = ""

    def __post_init__(self) -> None:
        """Store the text before any injection."""
        self._original = self.text()

    def leave_out(self, operation: Piece) -> None:
        """Remove one operation."""
        self._require_piece(operation)
        self.pieces[operation] = ""

    def move(self, operation: Piece, *, before: Piece | None = None, after: Piece | None = None) -> None:
        """Move one operation before or after another one, also into an inner or outer loop."""
        self._require_piece(operation)
        target = before or after
        assert target is not None
        self._list_containing(operation).remove(operation)
        order = self._list_containing(target)
        order.insert(order.index(target) + (after is not None), operation)

    def replace(self, where: Piece, old: str, new: str) -> None:
        """Change some characters of one piece.

        Raises:
            CannotInject: the piece does not contain these characters, since another failure has changed the lines.
        """
        piece = self.pieces.get(where, "")
        self._require_piece(where)
        if old not in piece:
            raise CannotInject(
                f"{old.strip()!r} is not in the {where.replace('_', ' ')}: another failure has changed it."
            )
        self.pieces[where] = piece.replace(old, new)

    def unwrap(self, where: Piece, head: str) -> None:
        """Remove the head of a block and dedent its body."""
        lines = self.pieces.get(where, "").splitlines()
        index = next((index for index, line in enumerate(lines) if line.strip() == head), None)
        if index is None:
            raise CannotInject(f"The loop has no {head!r} in its {where.replace('_', ' ')}.")
        depth = len(lines[index]) - len(lines[index].lstrip())
        end = index + 1
        while end < len(lines) and (not lines[end].strip() or lines[end].startswith(" " * (depth + 1))):
            end += 1
        lines[index:end] = [line[len(INDENT) :] for line in lines[index + 1 : end]]
        self.pieces[where] = "\n".join(lines)

    def require(self, holds: bool, reason: str, **settings: Any) -> None:
        """Check a condition without which a failure is not possible.

        Args:
            holds: True if the loop fulfils the condition.
            reason: sentence that names what the loop lacks otherwise.
            settings: fields of the simulation with the values that would fulfil the condition.

        Raises:
            CannotInject: the loop does not fulfil the condition.
        """
        if not holds:
            raise CannotInject(reason, **settings)

    def text(self) -> str:
        """Return the source of the script."""
        blocks = [f'"""{self.title}"""', "\n".join(_sort_imports(self.imports))]
        blocks += [self._join_pieces(piece) for piece in SETUP_PIECES]
        blocks += [self._join_pieces(*TRAINING_PIECES), self._join_pieces(Piece.EVALUATION)]
        loop = "\n".join(filter(None, [self._join_pieces(Piece.RECORDS), self._loop_text()]))
        return _join_blocks([*blocks, loop, self.after_training])

    def changed_lines(self) -> list[ChangedLine]:
        """Return the lines that differ from the original text."""
        before, after = self._original.splitlines(), self.text().splitlines()
        changes: list[ChangedLine] = []
        matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
        for tag, old, old_end, new, new_end in matcher.get_opcodes():
            if tag != "equal":
                changes += _changed_lines(before[old:old_end], after[new:new_end], min(new + 1, len(after)))
        return changes

    def _join_pieces(self, *pieces: Piece) -> str:
        return "\n".join(filter(None, (self.pieces.get(piece, "") for piece in pieces)))

    def _loop_text(self) -> str:
        window = self._lines(self.each_window)
        if self.window_condition:
            window = [self.window_condition, *_indent(window)] if window else []
        batch = [self.batch_loop_head, *_indent([*self._lines(self.each_batch), *window])]
        if self.epoch_context_head:
            batch = [self.epoch_context_head, *_indent(batch)]
        epoch = [*self._lines(self.each_epoch), *batch, *self._lines(self.after_epoch)]
        return "\n".join([self.epoch_loop_head, *_indent(epoch)])

    def _lines(self, operations: list[Piece]) -> list[str]:
        return [line for each in operations for line in self.pieces.get(each, "").splitlines()]

    def _require_piece(self, piece: Piece) -> None:
        if not self.pieces.get(piece):
            description, settings = PIECE_DESCRIPTIONS.get(piece, piece.value), PIECE_SETTINGS.get(piece, {})
            reason = (
                f"This loop has no {description}."
                if settings
                else f"Another failure has already removed the {description}."
            )
            raise CannotInject(reason, **settings)

    def _list_containing(self, operation: Piece) -> list[Piece]:
        orders = (self.each_epoch, self.each_batch, self.each_window, self.after_epoch)
        return next(order for order in orders if operation in order)


def replacement_injector(where: Piece, old: str, new: str) -> Callable[[TeachingLoop], None]:
    """Return an ``inject`` that replaces a text in one piece."""
    # A partial can be pickled, unlike a closure: failures are sent to the processes of the linter.
    return partial(_inject_replacement, where=where, old=old, new=new)


def line_injector(where: Piece, line: str) -> Callable[[TeachingLoop], None]:
    """Return an ``inject`` that adds a line at the end of one piece."""
    return partial(_inject_line, where=where, line=line)


def repetition_injector(piece: Piece, at: Piece) -> Callable[[TeachingLoop], None]:
    """Return an ``inject`` that repeats one piece after another one."""
    return partial(_inject_repetition, piece=piece, at=at)


def _inject_replacement(loop: TeachingLoop, *, where: Piece, old: str, new: str) -> None:
    loop.replace(where, old, new)


def _inject_line(loop: TeachingLoop, *, where: Piece, line: str) -> None:
    loop.pieces[where] += "\n" + line


def _inject_repetition(loop: TeachingLoop, *, piece: Piece, at: Piece) -> None:
    loop.pieces[at] += "\n" + loop.pieces[piece]


def _indent(lines: list[str]) -> list[str]:
    return [INDENT + line if line else "" for line in lines]


def _changed_lines(before: list[str], after: list[str], line: int) -> Iterator[ChangedLine]:
    for index in range(max(len(before), len(after))):
        old = before[index].strip() if index < len(before) else ""
        new = after[index].strip() if index < len(after) else ""
        if old or new:
            kind = "changed" if old and new else "added" if new else "left out"
            yield ChangedLine(line + min(index, max(len(after) - 1, 0)), kind, old, new)


def _sort_imports(imports: list[str]) -> Iterator[str]:
    """Yield the imports as formatters sort them: standard library first, plain imports before ``from`` imports."""
    third_party = {line for line in imports if line.split()[1].split(".")[0] in {"torch", "sklearn", "numpy"}}
    groups = [
        sorted(group, key=lambda line: (line.startswith("from"), line))
        for group in (set(imports) - third_party, third_party)
    ]
    yield from "\n\n".join("\n".join(group) for group in groups if group).splitlines()


def _join_blocks(blocks: list[str]) -> str:
    """Join blocks, with two empty lines around definitions."""
    text, defined = "", False
    for block in filter(None, map(str.rstrip, blocks)):
        heads = [line for line in block.splitlines() if line and not line.startswith((" ", "#", ")", "]", "@"))]
        defines = [line.startswith(("def ", "class ")) for line in heads]
        separator = "\n\n\n" if defined or (defines and defines[0]) else "\n\n"
        text, defined = f"{text}{separator}{block}" if text else block, bool(defines) and defines[-1]
    return text + "\n"
