"""Finds a feature of which the target is a multiple, plus a constant, in all samples."""

from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from trueloop.core.findings import CodePosition
from trueloop.core.formatting import format_float
from trueloop.tracing.row_digests import has_storage, mix

MAX_ROWS: Final = 64  # samples of a batch that are compared
MAX_FEATURES: Final = 512
MAX_BATCHES: Final = 200
CHECKED_EVERY: Final = 4  # batches, after which the search ends if no feature explains the targets
MIN_ROWS: Final = 4
MIN_SAMPLES: Final = 64
MAX_SAMPLES: Final = 4096  # whose hashes are stored
MAX_VALUES: Final = 256
MIN_VALUES: Final = 8  # different values of a target that is not a class
MIN_OF_CLASS: Final = 5
MAX_UNEXPLAINED: Final = 1e-10
"""Largest share of the target's variance that a copied feature does not explain, after rounding to float32."""
MIN_OVERLAP: Final = 0.2  # of the windows of a series that begin where another window ends but for one step
MIN_STEPS: Final = 3


class CopiedColumn(NamedTuple):
    """A feature from which the target follows."""

    name: str
    formula: str
    samples: int
    overlapping: bool
    """Whether the samples are windows of one series that overlap."""


class _Inputs(NamedTuple):
    """A copy of some inputs."""

    values: Tensor
    """Of shape (B, features)."""
    shape: tuple[int, ...]
    """Shape of one sample."""
    is_sequence: bool
    rows: int


def copy_inputs(inputs: Any) -> _Inputs | None:
    """Return a copy of the inputs of a model call; None if they cannot be compared. Cost: 8 us."""
    if not isinstance(inputs, Tensor) or not has_storage(inputs) or not inputs.is_cpu or inputs.is_complex():
        return None
    if inputs.ndim not in (2, 3) or len(inputs) < MIN_ROWS or not 2 <= inputs[0].numel() <= MAX_FEATURES:
        return None
    values = inputs.detach()[:MAX_ROWS].reshape(min(len(inputs), MAX_ROWS), -1).to(torch.float64, copy=True)
    is_sequence = inputs.ndim == 3 or not inputs.is_floating_point()
    return _Inputs(values, tuple(inputs.shape[1:]), is_sequence, len(inputs))


class CopiedColumns:
    """The sums from which the correlation of each feature with the target is computed."""

    def __init__(self, location: CodePosition | None) -> None:
        self.location = location
        """The line of the backward pass."""
        self._batches = 0
        self._shape: tuple[int, ...] = ()
        self._is_sequence = False
        self._first: tuple[Tensor, Tensor] | None = None
        """Inputs and target of the first sample, which are subtracted from all."""
        self._sums = torch.zeros(0)
        """Sums of x, x * x, x * y for each feature."""
        self._target_sums = torch.zeros(2, dtype=torch.float64)
        self._count = 0
        self._digests: set[int] = set()
        self._beginnings: set[int] = set()
        self._ends: set[int] = set()
        self._values: dict[float, int] = {}

    @property
    def is_undecided(self) -> bool:
        """Whether further batches are compared."""
        return self._batches < MAX_BATCHES

    @property
    def is_judged(self) -> bool:
        """Whether enough different samples were compared."""
        return len(self._digests) >= MIN_SAMPLES

    def add(self, inputs: _Inputs, targets: Tensor) -> None:
        """Add one batch, if it has one target per sample."""
        if self._batches >= MAX_BATCHES or targets.numel() != inputs.rows or not targets.is_cpu:
            return
        if self._shape and inputs.shape != self._shape:
            self._batches = MAX_BATCHES
            self._digests.clear()
            return
        x, y = inputs.values, targets.detach().flatten()[: len(inputs.values)].double()
        self._shape, self._is_sequence = inputs.shape, inputs.is_sequence
        self._batches += 1
        if self._first is None:
            self._first = x[0].clone(), y[0].clone()
            self._sums = torch.zeros(3, x.shape[1], dtype=torch.float64)
        self._remember(x, y)
        x, y = x - self._first[0], y - self._first[1]
        self._count += len(x)
        self._sums += torch.stack([x.sum(0), x.square().sum(0), (x * y[:, None]).sum(0)])
        self._target_sums += torch.stack([y.sum(), y.square().sum()])
        if self._batches % CHECKED_EVERY == 0 and self.is_judged and self._is_excluded():
            self._batches = MAX_BATCHES

    def _is_excluded(self) -> bool:
        """Return True if no feature explains the targets so far; further samples cannot change this."""
        variance, copied = self._copied()
        return bool(variance > 0) and not copied.any()

    def _remember(self, x: Tensor, y: Tensor) -> None:
        """Add the hashes of the samples, and the values of the targets."""
        if len(self._digests) < MAX_SAMPLES:
            self._digests.update(_digests(x))
        if len(self._ends) < MAX_SAMPLES:
            steps = x.reshape(len(x), *self._shape)
            self._beginnings.update(_digests(steps[:, :-1].flatten(1)))
            self._ends.update(_digests(steps[:, 1:].flatten(1)))
        for value in y.tolist():
            if value in self._values or len(self._values) < MAX_VALUES:
                self._values[value] = self._values.get(value, 0) + 1

    def column(self) -> CopiedColumn | None:
        """Return the feature from which the target follows exactly; None if there is none."""
        overlapping = self._overlaps()
        if not self.is_judged or not self._varies() or (self._is_sequence and not overlapping):
            return None
        variance, copied = self._copied()
        if not variance > 0 or not copied.any() or bool(copied.all()) or self._first is None:
            return None
        index = int(copied.nonzero()[0])
        mean, spread, shared = self._means_and_variances()
        slope = (shared[index] / spread[index]).item()
        mean_target = self._target_sums[0] / self._count
        constant = (self._first[1] - slope * self._first[0][index] + mean_target - slope * mean[index]).item()
        formula = _formula(slope, constant, variance.item() ** 0.5)
        return CopiedColumn(self._name(index), formula, len(self._digests), overlapping)

    def _means_and_variances(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return mean and variance of each feature, and its covariance with the target."""
        count, total = self._count, self._target_sums[0]
        mean = self._sums[0] / count
        spread = (self._sums[1] / count - mean.square()).clamp(min=0)
        return mean, spread, self._sums[2] / count - mean * total / count

    def _copied(self) -> tuple[Tensor, Tensor]:
        """Return the variance of the target, and which features explain all of it."""
        total, squares = self._target_sums
        variance = (squares - total.square() / self._count) / self._count
        _, spread, shared = self._means_and_variances()
        unexplained = variance - shared.square() / spread.clamp(min=1e-300)
        return variance, (unexplained <= MAX_UNEXPLAINED * variance) & (spread > 0)

    def _varies(self) -> bool:
        """Return True if the target has enough different values, or two classes with enough samples."""
        frequent = sum(number >= MIN_OF_CLASS for number in self._values.values())
        return len(self._values) >= MIN_VALUES or frequent >= 2

    def _overlaps(self) -> bool:
        """Return True for sequences that are windows of one series."""
        smaller = min(len(self._beginnings), len(self._ends))
        long_enough = bool(self._shape) and self._shape[0] >= MIN_STEPS
        return long_enough and len(self._beginnings & self._ends) >= max(MIN_OVERLAP * smaller, 8)

    def _name(self, index: int) -> str:
        if len(self._shape) == 1:
            return f"feature {index} of {self._shape[0]}"
        return f"feature {index % self._shape[1]} at step {index // self._shape[1]} of {self._shape[0]}"


def _formula(slope: float, constant: float, deviation: float) -> str:
    """Return the target in terms of the feature x."""
    offset = "" if abs(constant) <= 1e-6 * deviation else f" {'+-'[constant < 0]} {format_float(abs(constant))}"
    return f"{'' if abs(slope - 1) < 1e-6 else f'{format_float(slope)} * '}x{offset}"


def _digests(rows: Tensor) -> list[int]:
    """Return a hash of each row."""
    mixed = mix(rows.float().contiguous().view(torch.int32).long())
    return mix(mixed.cumsum(1)).sum(1).tolist()
