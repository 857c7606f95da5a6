"""Compares a network in train mode (left) with its copy in eval mode (right), on the same inputs.

Forward hooks record what dropout masked, which statistics the BatchNorm layer used, and how it updated its running
statistics.
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
"""Default `eps` of BatchNorm layers."""

Cells = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Modes:
    """Settings of the comparison."""

    dropout: float = 0.5
    width: int = 6
    """Number of units that are normalised and dropped."""
    batch: int = 4
    momentum: float = 0.1
    """Weight of the new batch in BatchNorm's running statistics."""
    passes: int = 8
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistic:
    """Mean or variance of one unit in the BatchNorm layer."""

    batch: str
    """The statistic over the batch of this pass."""
    running: str
    """The running statistic after this pass."""
    moved: bool
    """True if this pass has changed the running statistic."""
    used: Literal["batch", "running"]
    """The statistic that normalised the unit's values."""
    calculation: str
    """The calculation of the running statistic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardPass:
    """One forward pass of one network."""

    means: tuple[Statistic, ...]
    """One statistic per unit."""
    variances: tuple[Statistic, ...]
    normalised: Cells
    """Output of the BatchNorm layer [batch, width], before ReLU."""
    norm_calculations: Cells
    """The calculation of each normalised value [batch, width]."""
    mask: tuple[tuple[bool, ...], ...]
    """Dropout mask [batch, width]: False where a value was set to 0."""
    activations: Cells
    """Output of dropout [batch, width]."""
    dropout_calculations: Cells
    outputs: Cells
    """Output of the network [batch, 2]."""
    same_as_before: bool | None
    """True if the outputs are bitwise equal to those of the previous pass; None for the first pass."""
    max_difference: str
    """Largest difference from the outputs of the previous pass; empty for the first pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All passes of both networks."""

    text: str
    printed: str
    inputs: Cells
    left: tuple[ForwardPass, ...]
    """Passes in train mode; empty if PyTorch raised an error, as it does for a batch of one."""
    right: tuple[ForwardPass, ...]
    lines: tuple[int, int]
    """Line numbers of the two forward passes in the program."""
    refused: str
    """PyTorch's error message; empty if there was no error."""
    scale: str
    """Factor by which dropout multiplies the values that it keeps."""
    running_means: tuple[tuple[float, ...], ...]
    """Running means of the left network after each pass, [passes, width]."""


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
    """Return the program, which runs unchanged as a file."""
    is_batch_of_one = modes.batch == 1
    return _PROGRAM.format(
        seed=modes.seed, width=modes.width, momentum=repr(modes.momentum), dropout=repr(modes.dropout),
        batch=modes.batch, passes=modes.passes, left=_LEFT_OF_ONE if is_batch_of_one else _LEFT,
        last=_LAST_OF_ONE if is_batch_of_one else _LAST,
    )  # fmt: skip


def compare(modes: Modes) -> Comparison:
    """Run the program and record each forward pass.

    Cost: about 1 ms per pass.
    """
    text, recorder = program(modes), _Recorder(modes)
    printed = run_marked(text, MARKS, recorder.record_line)
    return Comparison(
        text=text,
        printed=printed,
        inputs=recorder.inputs,
        left=tuple(recorder.passes["left"]),
        right=tuple(recorder.passes["right"]),
        lines=(recorder.lines["left"], recorder.lines["right"]),
        refused=recorder.refused,
        scale=format_cell(1 / (1 - modes.dropout)) if modes.dropout < 1 else "0",
        running_means=tuple(recorder.running_means),
    )


@dataclass(slots=True, kw_only=True)
class _Layers:
    """Tensors that the hooks have recorded in the latest forward pass of one network."""

    norm: nn.BatchNorm1d
    dropout: nn.Dropout
    running: tuple[Tensor, Tensor]
    """Running mean and variance before the pass."""
    before_norm: Tensor
    normalised: Tensor
    mask: Tensor
    activated: Tensor
    dropped: Tensor


class _Recorder:
    """Registers hooks on both networks and records their forward passes."""

    def __init__(self, modes: Modes) -> None:
        self._modes = modes
        self._layers: dict[Side, _Layers] = {}
        self._outputs: dict[Side, Tensor] = {}
        self.passes: dict[Side, list[ForwardPass]] = {"left": [], "right": []}
        self.lines: dict[str, int] = {}
        self.running_means: list[tuple[float, ...]] = []
        self.inputs: Cells = ()
        self.refused = ""

    def record_line(self, marked: MarkedLine, program: Mapping[str, Any]) -> None:
        """Record what the marked line has changed."""
        self.lines[marked.mark] = marked.line
        if marked.mark == "built":
            self.inputs = _cells(program["inputs"])
            self._add_hooks("left", program["left"])
            self._add_hooks("right", program["right"])
        elif marked.mark == "refused":
            self.refused, self.lines["left"] = program["refused"], marked.line - 2
        elif marked.mark == "left":
            self._record_pass("left", program["left_outputs"])
            self.running_means.append(tuple(self._layers["left"].norm.running_mean.tolist()))  # pyright: ignore[reportOptionalMemberAccess]
        else:
            self._record_pass("right", program["right_outputs"])

    def _add_hooks(self, side: Side, network: nn.Sequential) -> None:
        norm, dropout = network[1], network[3]
        assert isinstance(norm, nn.BatchNorm1d)
        assert isinstance(dropout, nn.Dropout)
        empty = torch.empty(0)
        layers = _Layers(
            norm=norm, dropout=dropout, running=(empty, empty), before_norm=empty, normalised=empty, mask=empty,
            activated=empty, dropped=empty,
        )  # fmt: skip
        self._layers[side] = layers

        def before_norm(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            layers.before_norm, layers.running = inputs[0].detach(), _running(norm)

        def after_norm(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            layers.normalised = output.detach()

        def before_dropout(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            layers.activated, layers.mask = inputs[0].detach(), _next_mask(dropout, inputs[0])

        def after_dropout(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            layers.dropped = output.detach()

        norm.register_forward_pre_hook(before_norm)
        norm.register_forward_hook(after_norm)
        dropout.register_forward_pre_hook(before_dropout)
        dropout.register_forward_hook(after_dropout)

    def _record_pass(self, side: Side, outputs: Tensor) -> None:
        layers, outputs, before = self._layers[side], outputs.detach(), self._outputs.get(side)
        means, variances = self._statistics(layers)
        self.passes[side].append(
            ForwardPass(
                means=means,
                variances=variances,
                normalised=_cells(layers.normalised),
                norm_calculations=_norm_calculations(layers),
                mask=tuple(tuple(row) for row in layers.mask.tolist()),
                activations=_cells(layers.dropped),
                dropout_calculations=self._dropout_calculations(layers),
                outputs=_cells(outputs),
                same_as_before=None if before is None else torch.equal(outputs, before),
                max_difference="" if before is None else format_cell((outputs - before).abs().max().item()),
            )
        )
        self._outputs[side] = outputs.clone()

    def _statistics(self, layers: _Layers) -> tuple[tuple[Statistic, ...], tuple[Statistic, ...]]:
        inputs, n = layers.before_norm, self._modes.batch
        # The running variance divides by n − 1, to estimate the variance of all data; the batch's own divides by n.
        correction = f" × {n}/{n - 1}" if n > 1 else ""
        return (
            self._statistic(layers, 0, inputs.mean(0), ""),
            self._statistic(layers, 1, inputs.var(0, correction=0), correction),
        )

    def _statistic(self, layers: _Layers, index: int, of_batch: Tensor, correction: str) -> tuple[Statistic, ...]:
        new_weight, training = self._modes.momentum, layers.norm.training
        after = _running(layers.norm)[index]
        statistics: list[Statistic] = []
        for unit, (before, current) in enumerate(zip(layers.running[index].tolist(), after.tolist(), strict=True)):
            batch = format_cell(of_batch[unit].item())
            decayed = f"{format_cell(1 - new_weight)} × {format_cell(before)}"
            value = format_cell(current)
            updated = f"{value} = {decayed} + {format_cell(new_weight)} × {batch}{correction}"
            statistics.append(
                Statistic(
                    batch=_format_short(of_batch[unit].item()),
                    running=_format_short(current),
                    moved=current != before,
                    used="batch" if training else "running",
                    calculation=updated if training else f"{value} unchanged: eval mode does not update it",
                )
            )
        return tuple(statistics)

    def _dropout_calculations(self, layers: _Layers) -> Cells:
        p = self._modes.dropout

        def describe(value: float, keep: bool, result: float) -> str:
            if not layers.dropout.training:
                return f"{format_cell(result)} unchanged: eval mode drops nothing"
            return (
                f"{format_cell(result)} = {format_cell(value)} / (1 − {format_cell(p)})"
                if keep
                else f"0: masked, with probability {p:g}"
            )

        rows = zip(layers.activated.tolist(), layers.mask.tolist(), layers.dropped.tolist(), strict=True)
        return tuple(tuple(describe(*cell) for cell in zip(*row, strict=True)) for row in rows)


def _norm_calculations(layers: _Layers) -> Cells:
    inputs = layers.before_norm
    statistics = (inputs.mean(0), inputs.var(0, correction=0)) if layers.norm.training else layers.running
    means, variances = (each.tolist() for each in statistics)
    return tuple(
        tuple(
            f"{format_cell(y)} = ({format_cell(x)} − {format_cell(mean)}) / "
            f"√({format_cell(variance)} + {format_cell(EPS)})"
            for y, x, mean, variance in zip(*row, means, variances, strict=True)
        )
        for row in zip(layers.normalised.tolist(), inputs.tolist(), strict=True)
    )


def _running(norm: nn.BatchNorm1d) -> tuple[Tensor, Tensor]:
    mean, variance = norm.running_mean, norm.running_var
    assert mean is not None
    assert variance is not None
    return mean.clone(), variance.clone()


def _next_mask(dropout: nn.Dropout, inputs: Tensor) -> Tensor:
    """Return the mask that dropout will draw next; the generator state is restored."""
    state = torch.get_rng_state()
    mask = torch.dropout(torch.ones_like(inputs), dropout.p, dropout.training) != 0
    torch.set_rng_state(state)
    return mask


def _format_short(value: float) -> str:
    """Format a number for a narrow cell, with one digit fewer than in its calculation."""
    return format_cell(value, 3)


def _cells(rows: Tensor) -> Cells:
    return tuple(tuple(map(_format_short, row)) for row in rows.tolist())
