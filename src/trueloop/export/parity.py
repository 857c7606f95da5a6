"""Compare the outputs of an exported model and of the original model on real samples."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from trueloop.core.errors import InvalidModel
from trueloop.export.call_signature import CallModel, Inputs

TOLERANCE: Final = 1e-5  # about a hundred rounding errors of float32


@dataclass(frozen=True, slots=True, kw_only=True)
class Parity:
    """Difference between the original and the exported model."""

    samples: int
    batches: tuple[int, ...]
    """Sizes of the batches."""
    difference: float
    """Largest difference between two corresponding numbers; inf if shapes or NaNs differ."""
    largest: float
    """Largest absolute value in the outputs of the original model."""
    tolerance: float
    """Tolerance relative to the larger of `largest` and 1."""
    mismatch: str = ""
    """Description of outputs with another shape or type; "" = none."""

    @property
    def allowed(self) -> float:
        """The largest difference that is within the tolerance."""
        return self.tolerance * max(1.0, self.largest)

    @property
    def passed(self) -> bool:
        """True if the difference is within the tolerance."""
        return self.difference <= self.allowed

    def __str__(self) -> str:
        sizes = ", ".join(map(str, dict.fromkeys(self.batches)))
        return (
            f"largest difference {self.difference:.3g} over {self.samples} samples in batches of {sizes} "
            f"(allowed {self.allowed:.3g}){self.mismatch and '; '}{self.mismatch}"
        )


def compare_outputs(
    original: CallModel, exported: CallModel, batches: Sequence[Inputs], *, tolerance: float = TOLERANCE
) -> Parity:
    """Run both models on the same batches and compare their outputs.

    Args:
        original: the original model, in eval mode.
        exported: the exported model, read from disk.
        batches: batches of real inputs; of several sizes, if sizes may differ.
        tolerance: see `Parity.tolerance`.

    Raises:
        InvalidModel: the exported model raises an error.
    """
    difference, largest, mismatch = 0.0, 0.0, ""
    for inputs in batches:
        expected = original(inputs)
        try:
            actual = exported(inputs)
        except Exception as error:  # the runtimes raise errors of any type
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in inputs)
            raise InvalidModel(
                f"The exported model fails on inputs of shape {shapes}: {str(error).partition(chr(10))[0][:300]}",
                why="The original model accepts them, so the export has probably fixed a size of the example.",
                fix="Export with --no-dynamic-batch, or to pt2.",
            ) from error
        mismatch = mismatch or _describe_mismatch(inputs, expected, actual)
        pairs = list(zip(expected, actual, strict=False))
        differences = [_max_difference(a, b) for a, b in pairs] + [float("inf")] * (len(expected) != len(actual))
        difference = max(difference, *differences)
        largest = max(largest, *(_max_magnitude(tensor) for tensor in expected))
    sizes = tuple(len(inputs[0]) for inputs in batches)
    return Parity(
        samples=sum(sizes),
        batches=sizes,
        difference=difference,
        largest=largest,
        tolerance=tolerance,
        mismatch=mismatch,
    )


def _describe_mismatch(inputs: Inputs, expected: Sequence[Tensor], actual: Sequence[Tensor]) -> str:
    original, exported = (", ".join(_describe_tensor(tensor) for tensor in outputs) for outputs in (expected, actual))
    called_with = ", ".join(_describe_tensor(tensor) for tensor in inputs)
    same = original == exported
    return "" if same else f"for {called_with} it returns {exported}, but the original returns {original}"


def _describe_tensor(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}[{', '.join(map(str, tensor.shape))}]"


def _max_difference(expected: Tensor, actual: Tensor) -> float:
    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        return float("inf")
    a, b = expected.double(), actual.double()
    equal = (a == b) | (a.isnan() & b.isnan())
    difference = torch.where(equal, torch.zeros_like(a), (a - b).abs())
    return float(difference.nan_to_num(nan=float("inf")).max()) if difference.numel() else 0.0


def _max_magnitude(output: Tensor) -> float:
    finite = output.double().abs().nan_to_num(nan=0.0, posinf=0.0)
    return float(finite.max()) if finite.numel() else 0.0
