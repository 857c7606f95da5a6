"""Compares the outputs of an exported model with those of the live model on real samples."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from trueloop.core.errors import InvalidModel
from trueloop.export.call_signature import Inputs, Run

TOLERANCE: Final = 1e-5  # of float32: about a hundred roundings


@dataclass(frozen=True, slots=True, kw_only=True)
class Parity:
    """Difference between the live and the exported model."""

    samples: int
    batches: tuple[int, ...]
    """Sizes of the batches."""
    difference: float
    """Largest difference between two corresponding numbers; inf where shapes or NaNs differ."""
    largest: float
    """Largest absolute output of the live model."""
    tolerance: float
    """Tolerance relative to `largest`, or to 1 where that is more."""
    mismatch: str = ""
    """Description of outputs with another shape or type; "" = none."""

    @property
    def allowed(self) -> float:
        """The largest difference that passes."""
        return self.tolerance * max(1.0, self.largest)

    @property
    def passed(self) -> bool:
        """True where the difference is within the tolerance."""
        return self.difference <= self.allowed

    def __str__(self) -> str:
        sizes = ", ".join(map(str, dict.fromkeys(self.batches)))
        return (
            f"largest difference {self.difference:.3g} over {self.samples} samples in batches of {sizes} "
            f"(allowed {self.allowed:.3g}){self.mismatch and '; '}{self.mismatch}"
        )


def compare_outputs(live: Run, exported: Run, batches: Sequence[Inputs], *, tolerance: float = TOLERANCE) -> Parity:
    """Run both models on the same batches and compare their outputs.

    Args:
        live: the model itself, in eval mode.
        exported: the model read back from disk.
        batches: real inputs, of several sizes where sizes may differ.
        tolerance: see `Parity.tolerance`.

    Raises:
        InvalidModel: the exported model fails where the live one works.
    """
    difference, largest, mismatch = 0.0, 0.0, ""
    for inputs in batches:
        expected = live(inputs)
        try:
            found = exported(inputs)
        except Exception as error:  # any error of the runtime
            shapes = ", ".join(str(tuple(each.shape)) for each in inputs)
            raise InvalidModel(
                f"The exported model fails on inputs of shape {shapes}: {str(error).partition(chr(10))[0][:300]}",
                why="The live model accepts them.",
                fix="A size was fixed to that of the example: export with --no-dynamic-batch, or to pt2.",
            ) from error
        mismatch = mismatch or _describe_mismatch(inputs, expected, found)
        pairs = list(zip(expected, found, strict=False))
        gaps = [_max_difference(a, b) for a, b in pairs] + [float("inf")] * (len(expected) != len(found))
        difference = max(difference, *gaps)
        largest = max(largest, *(_max_magnitude(each) for each in expected))
    sizes = tuple(len(inputs[0]) for inputs in batches)
    return Parity(
        samples=sum(sizes),
        batches=sizes,
        difference=difference,
        largest=largest,
        tolerance=tolerance,
        mismatch=mismatch,
    )


def _describe_mismatch(inputs: Inputs, expected: Sequence[Tensor], found: Sequence[Tensor]) -> str:
    live, exported = (", ".join(_describe_tensor(each) for each in outputs) for outputs in (expected, found))
    given = ", ".join(_describe_tensor(each) for each in inputs)
    return "" if live == exported else f"for {given} it returns {exported}, but the live model returns {live}"


def _describe_tensor(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}[{', '.join(map(str, tensor.shape))}]"


def _max_difference(expected: Tensor, found: Tensor) -> float:
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return float("inf")
    a, b = expected.double(), found.double()
    same = (a == b) | (a.isnan() & b.isnan())
    apart = torch.where(same, torch.zeros_like(a), (a - b).abs())
    return float(apart.nan_to_num(nan=float("inf")).max()) if apart.numel() else 0.0


def _max_magnitude(output: Tensor) -> float:
    finite = output.double().abs().nan_to_num(nan=0.0, posinf=0.0)
    return float(finite.max()) if finite.numel() else 0.0
