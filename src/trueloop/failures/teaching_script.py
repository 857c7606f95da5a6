"""The teaching loop: a short PyTorch training script taken apart, so that each operation can be shown or broken.

It knows no torch: it is source, in pieces with names, and `TeachingLoop.text` puts them together to a script that runs
as it stands. A failure's ``inject`` breaks one operation: leaves a line out, moves it, changes it.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, Final, NamedTuple

from trueloop.core.errors import TrueloopError

INDENT: Final = " " * 4


class Piece(StrEnum):
    """What the script is made of: what stands before the loop, in this order, and what the loop does."""

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
    KEEP = "keep"
    SHARE = "share"
    BACKWARD = "backward"
    UNSCALE = "unscale"
    CLIP = "clip"
    UPDATE = "update"
    SCHEDULE = "schedule"
    CLEAR = "clear"
    EVALUATE = "evaluate"
    KEEP_BEST = "keep_best"


SETTING: Final = (Piece.SETUP, Piece.DATA, Piece.LOADERS, Piece.MODEL)
TRAINING_WITH: Final = (Piece.CRITERION, Piece.OPTIMIZER, Piece.SCHEDULER)


GIVEN_BY: Final[Mapping[Piece, Mapping[str, Any]]] = {
    Piece.SHARE: {"accumulation": 4},
    Piece.UNSCALE: {"precision": "float16", "clip": 1.0},
    Piece.CLIP: {"clip": 1.0},
    Piece.SCHEDULER: {"schedule": "cosine"},
    Piece.SCHEDULE: {"schedule": "cosine"},
    Piece.KEEP_BEST: {"keep_best": True},
}
"""Settings with which a loop has a piece that others do without."""


WORDS: Final[Mapping[Piece, str]] = {
    Piece.TRAIN_MODE: "line that sets train mode",
    Piece.SHARE: "line that shares out a window's loss",
    Piece.UNSCALE: "line that unscales gradients",
    Piece.CLIP: "line that clips gradients",
    Piece.SCHEDULE: "schedule",
    Piece.SCHEDULER: "schedule",
    Piece.CLEAR: "line that clears gradients",
    Piece.KEEP_BEST: "line that keeps the best weights",
}


class CannotBreak(TrueloopError):
    """A loop that has nothing that a failure could be injected into.

    Args:
        what: what the loop lacks.
        settings: fields of the simulation, and values with which it would have it.
    """

    def __init__(self, what: str, *, fix: str = "", **settings: Any) -> None:
        named = ", ".join(f"{name} = {value!r}" for name, value in settings.items())
        super().__init__(what, fix=fix or (f"Choose {named}." if named else "Take one of the failures away."))
        self.settings = settings


class Broken(NamedTuple):
    """A line that an injected failure has left out, added or changed."""

    line: int
    """In the text as it is, from 1; of a line that was left out, the one that stands in its place."""
    kind: str
    """ "left out", "added" or "changed"."""
    before: str
    """What stood there; "" where it was added."""
    after: str
    """What stands there now; "" where it was left out."""


@dataclass(slots=True, kw_only=True)
class TeachingLoop:
    """A training script in pieces. Every piece is one or more lines of source, not indented; "" = nothing."""

    title: str
    """The script's docstring."""
    imports: list[str]
    """Statements; sorted, and each written once."""
    pieces: dict[Piece, str]
    batches: str = "for inputs, targets in train_loader:"
    """The head of the inner loop."""
    closes: str = ""
    """The condition under which a window of several batches is full; "" = every batch is a window of its own."""
    around: str = ""
    """The head of a block around the inner loop: "with torch.autocast(...):"."""
    epochs: str = "for epoch in range(epochs):"
    each_epoch: list[Piece] = field(default_factory=lambda: [Piece.TRAIN_MODE])
    each_batch: list[Piece] = field(
        default_factory=lambda: [
            Piece.FORWARD, Piece.LOSS, Piece.KEEP, Piece.SHARE, Piece.BACKWARD,
        ]
    )  # fmt: skip
    each_window: list[Piece] = field(
        default_factory=lambda: [
            Piece.UNSCALE, Piece.CLIP, Piece.UPDATE, Piece.SCHEDULE, Piece.CLEAR,
        ]
    )  # fmt: skip
    after_epoch: list[Piece] = field(default_factory=lambda: [Piece.EVALUATE, Piece.KEEP_BEST])
    closing: str = ""
    """What comes after the last epoch."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What the script was made from, by name, for those who break it: "batch", "schedule"."""
    _whole: str = ""

    def __post_init__(self) -> None:
        """Remember the text as it was before anything was broken."""
        self._whole = self.text()

    def leave_out(self, operation: Piece) -> None:
        """Forget one operation, as people do."""
        self._present(operation)
        self.pieces[operation] = ""

    def move(self, operation: Piece, *, before: Piece | None = None, after: Piece | None = None) -> None:
        """Do one operation earlier or later: at another's place, also if that is in an inner or outer loop."""
        self._present(operation)
        where = before or after
        assert where is not None
        self._order_of(operation).remove(operation)
        order = self._order_of(where)
        order.insert(order.index(where) + (after is not None), operation)

    def replace(self, where: Piece, old: str, new: str) -> None:
        """Change some characters of one piece.

        Raises:
            CannotBreak: they do not stand there, since another failure has changed the same lines.
        """
        piece = self.pieces.get(where, "")
        self._present(where)
        if old not in piece:
            raise CannotBreak(
                f"{old.strip()!r} is not in the {where.replace('_', ' ')}: another failure has changed it."
            )
        self.pieces[where] = piece.replace(old, new)

    def unwrap(self, where: Piece, head: str) -> None:
        """Take the head of a block away, and with it the indentation of the block."""
        lines = self.pieces.get(where, "").splitlines()
        place = next((place for place, line in enumerate(lines) if line.strip() == head), None)
        if place is None:
            raise CannotBreak(f"The loop has no {head!r} in its {where.replace('_', ' ')}.")
        depth = len(lines[place]) - len(lines[place].lstrip())
        end = place + 1
        while end < len(lines) and (not lines[end].strip() or lines[end].startswith(" " * (depth + 1))):
            end += 1
        lines[place:end] = [line[len(INDENT) :] for line in lines[place + 1 : end]]
        self.pieces[where] = "\n".join(lines)

    def require(self, holds: bool, what: str, **settings: Any) -> None:
        """Say what a failure needs to be possible at all.

        Args:
            holds: the loop has it.
            what: what it lacks otherwise, as a sentence.
            settings: what to set so that it has it.

        Raises:
            CannotBreak: it does not hold.
        """
        if not holds:
            raise CannotBreak(what, **settings)

    def text(self) -> str:
        """Return the script."""
        blocks = [f'"""{self.title}"""', "\n".join(_sorted(self.imports))]
        blocks += [self._joined(piece) for piece in SETTING]
        blocks += [self._joined(*TRAINING_WITH), self._joined(Piece.EVALUATION)]
        loop = "\n".join(filter(None, [self._joined(Piece.RECORDS), self._loop()]))
        return _spaced([*blocks, loop, self.closing])

    def broken(self) -> list[Broken]:
        """Return the lines in which the text differs from what it was when the loop was made."""
        before, after = self._whole.splitlines(), self.text().splitlines()
        found: list[Broken] = []
        matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
        for tag, old, old_end, new, new_end in matcher.get_opcodes():
            if tag != "equal":
                found += _differences(before[old:old_end], after[new:new_end], min(new + 1, len(after)))
        return found

    def _joined(self, *pieces: Piece) -> str:
        return "\n".join(filter(None, (self.pieces.get(piece, "") for piece in pieces)))

    def _loop(self) -> str:
        window = self._lines(self.each_window)
        if self.closes:
            window = [self.closes, *(INDENT + line if line else "" for line in window)] if window else []
        batch = [self.batches, *(INDENT + line if line else "" for line in [*self._lines(self.each_batch), *window])]
        if self.around:
            batch = [self.around, *(INDENT + line if line else "" for line in batch)]
        epoch = [*self._lines(self.each_epoch), *batch, *self._lines(self.after_epoch)]
        return "\n".join([self.epochs, *(INDENT + line if line else "" for line in epoch)])

    def _lines(self, operations: list[Piece]) -> list[str]:
        return [line for each in operations for line in self.pieces.get(each, "").splitlines()]

    def _present(self, piece: Piece) -> None:
        if not self.pieces.get(piece):
            words, settings = WORDS.get(piece, piece.value), GIVEN_BY.get(piece, {})
            why = f"This loop has no {words}." if settings else f"Another failure has taken the {words} away already."
            raise CannotBreak(why, **settings)

    def _order_of(self, operation: Piece) -> list[Piece]:
        orders = (self.each_epoch, self.each_batch, self.each_window, self.after_epoch)
        return next(order for order in orders if operation in order)


def changing(where: Piece, old: str, new: str) -> Callable[[TeachingLoop], None]:
    """Return an ``inject`` that changes some characters of one piece."""
    return partial(_change, where=where, old=old, new=new)  # no closure: the linter's processes are handed failures


def adding(where: Piece, line: str) -> Callable[[TeachingLoop], None]:
    """Return an ``inject`` that adds a line at the end of one piece."""
    return partial(_add, where=where, line=line)


def repeating(piece: Piece, at: Piece) -> Callable[[TeachingLoop], None]:
    """Return an ``inject`` that does what one piece does again, behind another one."""
    return partial(_repeat, piece=piece, at=at)


def _change(loop: TeachingLoop, *, where: Piece, old: str, new: str) -> None:
    loop.replace(where, old, new)


def _add(loop: TeachingLoop, *, where: Piece, line: str) -> None:
    loop.pieces[where] += "\n" + line


def _repeat(loop: TeachingLoop, *, piece: Piece, at: Piece) -> None:
    loop.pieces[at] += "\n" + loop.pieces[piece]


def _differences(before: list[str], after: list[str], line: int) -> Iterator[Broken]:
    for place in range(max(len(before), len(after))):
        old = before[place].strip() if place < len(before) else ""
        new = after[place].strip() if place < len(after) else ""
        if old or new:
            kind = "changed" if old and new else "added" if new else "left out"
            yield Broken(line + min(place, max(len(after) - 1, 0)), kind, old, new)


def _sorted(imports: list[str]) -> Iterator[str]:
    """Yield the standard library's first, plain imports before others, as formatters write them."""
    ours = {line for line in imports if line.split()[1].split(".")[0] in {"torch", "sklearn", "numpy"}}
    groups = [sorted(group, key=lambda line: (line.startswith("from"), line)) for group in (set(imports) - ours, ours)]
    yield from "\n\n".join("\n".join(group) for group in groups if group).splitlines()


def _spaced(blocks: list[str]) -> str:
    """Put blocks one below the other, two empty lines around what defines something."""
    text, defined = "", False
    for block in filter(None, map(str.rstrip, blocks)):
        heads = [line for line in block.splitlines() if line and not line.startswith((" ", "#", ")", "]", "@"))]
        defines = [line.startswith(("def ", "class ")) for line in heads]
        apart = "\n\n\n" if defined or (defines and defines[0]) else "\n\n"
        text, defined = f"{text}{apart}{block}" if text else block, bool(defines) and defines[-1]
    return text + "\n"
