"""One network twice, on the same inputs: in train mode on the left, in eval mode on the right.

Seen through forward hooks of the program's own layers: what dropout masked, which statistics batch normalisation used
and what it made of its running ones.
"""
# ruff: noqa: RUF001 - formulas use × and −

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn

from trueloop.lab.teaching.cell_arithmetic import format_cell
from trueloop.lab.teaching.tracing import MarkedLine, run_marked

Side = Literal["left", "right"]
MARKS: Final = ("built", "left", "refused", "right")
EPS: Final = 1e-5
"""BatchNorm's, as torch has it by default."""

Cells = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Modes:
    """What is computed."""

    dropout: float = 0.5
    width: int = 6
    """Units that are normalised and dropped."""
    batch: int = 4
    momentum: float = 0.1
    """Weight of the new batch in BatchNorm's running statistics."""
    passes: int = 8
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistic:
    """Of one unit, by batch normalisation."""

    batch: str
    """Over the batch that has just passed."""
    running: str
    """As the layer remembers it, after this pass."""
    moved: bool
    """The pass has changed it."""
    used: Literal["batch", "running"]
    """What the unit's values were normalised with."""
    sum: str
    """How the running one came about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardPass:
    """One forward of one side."""

    means: tuple[Statistic, ...]
    """Unit by unit."""
    variances: tuple[Statistic, ...]
    normalised: Cells
    """[batch, width], before ReLU."""
    norm_sums: Cells
    """How the normalised value came about, cell by cell."""
    kept: tuple[tuple[bool, ...], ...]
    """[batch, width]: False where dropout has masked."""
    activations: Cells
    """[batch, width], as dropout hands them on."""
    dropout_sums: Cells
    outputs: Cells
    """[batch, 2]."""
    same_as_before: bool | None
    """Bit for bit the outputs of this side's pass before; None for the first."""
    farthest: str
    """The largest difference from the outputs of the pass before; empty for the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """All passes."""

    text: str
    printed: str
    inputs: Cells
    left: tuple[ForwardPass, ...]
    """Empty where torch refused, as it does with a batch of one."""
    right: tuple[ForwardPass, ...]
    lines: tuple[int, int]
    """Of the program's two forwards."""
    refused: str
    """torch's own words; empty where it did not refuse."""
    scale: str
    """By which dropout multiplies what it keeps."""
    running_means: tuple[tuple[float, ...], ...]
    """The left one's after each pass, [passes, width], for a chart."""


_PROGRAM: Final = """\
import copy

import torch
from torch import nn

torch.manual_seed({seed})
network = nn.Sequential(
    nn.Linear(3, {width}),
    nn.BatchNorm1d({width}, momentum={momentum}),
    nn.ReLU(),
    nn.Dropout({dropout}),
    nn.Linear({width}, 2),
)
inputs = 2 * torch.randn({batch}, 3) + 1

left = copy.deepcopy(network).train()
right = copy.deepcopy(network).eval()  # built

for _ in range({passes}):
{left}
    right_outputs = right(inputs)  # right: running statistics, no dropout, nothing changes
{last}"""

_LEFT: Final = "    left_outputs = left(inputs)  # left: statistics of this batch, and a new mask"
_LEFT_OF_ONE: Final = """\
    try:
        left_outputs = left(inputs)  # left: a batch of one has no variance
    except ValueError as error:
        refused = str(error)  # refused"""
_LAST: Final = """
print("left, twice:", torch.equal(left(inputs), left(inputs)))
print("right, twice:", torch.equal(right(inputs), right(inputs)))
"""
_LAST_OF_ONE: Final = """
print("right, twice:", torch.equal(right(inputs), right(inputs)))
"""


def program(modes: Modes) -> str:
    """Return the program, runnable as it stands."""
    one = modes.batch == 1
    return _PROGRAM.format(
        seed=modes.seed,
        width=modes.width,
        momentum=repr(modes.momentum),
        dropout=repr(modes.dropout),
        batch=modes.batch,
        passes=modes.passes,
        left=_LEFT_OF_ONE if one else _LEFT,
        last=_LAST_OF_ONE if one else _LAST,
    )


def compare(modes: Modes) -> Compared:
    """Run the program, and write down what each forward did.

    Cost: about 1 ms per pass.
    """
    text, notes = program(modes), _Recorder(modes)
    printed = run_marked(text, MARKS, notes.record_line)
    return Compared(
        text=text,
        printed=printed,
        inputs=notes.inputs,
        left=tuple(notes.passed["left"]),
        right=tuple(notes.passed["right"]),
        lines=(notes.lines["left"], notes.lines["right"]),
        refused=notes.refused,
        scale=format_cell(1 / (1 - modes.dropout)) if modes.dropout < 1 else "0",
        running_means=tuple(notes.running_means),
    )


@dataclass(slots=True, kw_only=True)
class _Layers:
    """What the hooks have seen of one side's latest forward."""

    norm: nn.BatchNorm1d
    dropout: nn.Dropout
    running: tuple[Tensor, Tensor]
    """Mean and variance before it."""
    before_norm: Tensor
    normalised: Tensor
    kept: Tensor
    activated: Tensor
    dropped: Tensor


class _Recorder:
    """Puts hooks on both networks, and writes down what they see."""

    def __init__(self, modes: Modes) -> None:
        self._modes = modes
        self._seen: dict[Side, _Layers] = {}
        self._outputs: dict[Side, Tensor] = {}
        self.passed: dict[Side, list[ForwardPass]] = {"left": [], "right": []}
        self.lines: dict[str, int] = {}
        self.running_means: list[tuple[float, ...]] = []
        self.inputs: Cells = ()
        self.refused = ""

    def record_line(self, marked: MarkedLine, program: Mapping[str, Any]) -> None:
        """Record the variables after a line."""
        self.lines[marked.mark] = marked.line
        if marked.mark == "built":
            self.inputs = _cells(program["inputs"])
            self._watch("left", program["left"])
            self._watch("right", program["right"])
        elif marked.mark == "refused":
            self.refused, self.lines["left"] = program["refused"], marked.line - 2
        elif marked.mark == "left":
            self._passed("left", program["left_outputs"])
            self.running_means.append(tuple(self._seen["left"].norm.running_mean.tolist()))  # pyright: ignore[reportOptionalMemberAccess]
        else:
            self._passed("right", program["right_outputs"])

    def _watch(self, side: Side, network: nn.Sequential) -> None:
        norm, dropout = network[1], network[3]
        assert isinstance(norm, nn.BatchNorm1d)
        assert isinstance(dropout, nn.Dropout)
        none = torch.empty(0)
        seen = _Layers(
            norm=norm,
            dropout=dropout,
            running=(none, none),
            before_norm=none,
            normalised=none,
            kept=none,
            activated=none,
            dropped=none,
        )
        self._seen[side] = seen

        def norm_begins(_: nn.Module, given: tuple[Tensor, ...]) -> None:
            seen.before_norm, seen.running = given[0].detach(), _running(norm)

        def norm_ends(_: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> None:
            seen.normalised = made.detach()

        def dropout_begins(module: nn.Module, given: tuple[Tensor, ...]) -> None:
            seen.activated, seen.kept = given[0].detach(), _mask(dropout, given[0])

        def dropout_ends(_: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> None:
            seen.dropped = made.detach()

        norm.register_forward_pre_hook(norm_begins)
        norm.register_forward_hook(norm_ends)
        dropout.register_forward_pre_hook(dropout_begins)
        dropout.register_forward_hook(dropout_ends)

    def _passed(self, side: Side, outputs: Tensor) -> None:
        seen, outputs, before = self._seen[side], outputs.detach(), self._outputs.get(side)
        means, variances = self._statistics(seen)
        self.passed[side].append(
            ForwardPass(
                means=means,
                variances=variances,
                normalised=_cells(seen.normalised),
                norm_sums=_norm_sums(seen),
                kept=tuple(tuple(row) for row in seen.kept.tolist()),
                activations=_cells(seen.dropped),
                dropout_sums=self._dropout_sums(seen),
                outputs=_cells(outputs),
                same_as_before=None if before is None else torch.equal(outputs, before),
                farthest="" if before is None else format_cell((outputs - before).abs().max().item()),
            )
        )
        self._outputs[side] = outputs.clone()

    def _statistics(self, seen: _Layers) -> tuple[tuple[Statistic, ...], tuple[Statistic, ...]]:
        given, n = seen.before_norm, self._modes.batch
        batch = (given.mean(0), given.var(0, correction=0))
        # What is remembered of the variance is divided by n − 1: an estimate of all data's, not of this batch's.
        fed = (batch[0], given.var(0, correction=1) if n > 1 else batch[1])
        words = ("", f" × {n}/{n - 1}" if n > 1 else "")
        return (
            self._statistic(seen, 0, (batch[0], fed[0]), words[0]),
            self._statistic(seen, 1, (batch[1], fed[1]), words[1]),
        )

    def _statistic(
        self, seen: _Layers, which: int, of_batch: tuple[Tensor, Tensor], words: str
    ) -> tuple[Statistic, ...]:
        share, training = self._modes.momentum, seen.norm.training
        after = _running(seen.norm)[which]
        found: list[Statistic] = []
        for unit, (before, now) in enumerate(zip(seen.running[which].tolist(), after.tolist(), strict=True)):
            batch = format_cell(of_batch[0][unit].item())
            kept = f"{format_cell(1 - share)} × {format_cell(before)}"
            moved = f"{format_cell(now)} = {kept} + {format_cell(share)} × {batch}{words}"
            found.append(
                Statistic(
                    batch=_short(of_batch[0][unit].item()),
                    running=_short(now),
                    moved=now != before,
                    used="batch" if training else "running",
                    sum=moved if training else f"{format_cell(now)} unchanged: eval mode does not update it",
                )
            )
        return tuple(found)

    def _dropout_sums(self, seen: _Layers) -> Cells:
        p = self._modes.dropout

        def describe(value: float, kept: bool, result: float) -> str:
            if not seen.dropout.training:
                return f"{format_cell(result)} unchanged: eval mode drops nothing"
            return (
                f"{format_cell(result)} = {format_cell(value)} / (1 − {format_cell(p)})"
                if kept
                else f"0: masked, with probability {p:g}"
            )

        rows = zip(seen.activated.tolist(), seen.kept.tolist(), seen.dropped.tolist(), strict=True)
        return tuple(tuple(describe(*cell) for cell in zip(*row, strict=True)) for row in rows)


def _norm_sums(seen: _Layers) -> Cells:
    given = seen.before_norm
    used = (given.mean(0), given.var(0, correction=0)) if seen.norm.training else seen.running
    means, variances = (each.tolist() for each in used)
    return tuple(
        tuple(
            f"{format_cell(made)} = ({format_cell(x)} − {format_cell(mean)}) / "
            f"√({format_cell(variance)} + {format_cell(EPS)})"
            for made, x, mean, variance in zip(*row, means, variances, strict=True)
        )
        for row in zip(seen.normalised.tolist(), given.tolist(), strict=True)
    )


def _running(norm: nn.BatchNorm1d) -> tuple[Tensor, Tensor]:
    mean, variance = norm.running_mean, norm.running_var
    assert mean is not None
    assert variance is not None
    return mean.clone(), variance.clone()


def _mask(dropout: nn.Dropout, given: Tensor) -> Tensor:
    """Return the mask that dropout will draw next; the generator state is restored."""
    state = torch.get_rng_state()
    kept = torch.dropout(torch.ones_like(given), dropout.p, dropout.training) != 0
    torch.set_rng_state(state)
    return kept


def _short(value: float) -> str:
    """Write a number for a narrow cell; the sum that it comes from has a digit more."""
    return format_cell(value, 3)


def _cells(rows: Tensor) -> Cells:
    return tuple(tuple(map(_short, row)) for row in rows.tolist())
