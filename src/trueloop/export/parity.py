"""Whether what was exported gives the answers of the live model, on real samples."""

from __future__ import annotations

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
    """How far apart the two are."""

    samples: int
    batches: tuple[int, ...]
    """Their sizes."""
    difference: float
    """The largest between two numbers that should be one; inf where shapes or NaNs differ."""
    largest: float
    """The largest number that the live model gave, without its sign."""
    tolerance: float
    """Relative to `largest`, or to 1 where that is more."""
    unlike: str = ""
    """Where an output is of another shape or type: which."""

    @property
    def allowed(self) -> float:
        """The largest difference that passes."""
        return self.tolerance * max(1.0, self.largest)

    @property
    def passed(self) -> bool:
        """The two are one model."""
        return self.difference <= self.allowed

    def __str__(self) -> str:
        sizes = ", ".join(map(str, dict.fromkeys(self.batches)))
        return (
            f"largest difference {self.difference:.3g} over {self.samples} samples in batches of {sizes} "
            f"(allowed {self.allowed:.3g}){self.unlike and '; '}{self.unlike}"
        )


def parity(live: Run, exported: Run, batches: Sequence[Inputs], *, tolerance: float = TOLERANCE) -> Parity:
    """Run both on the same batches and compare.

    Args:
        live: the model itself, in eval mode.
        exported: what was read back from disk.
        batches: real inputs, of several sizes where sizes may differ.
        tolerance: see `Parity.tolerance`.

    Raises:
        InvalidModel: the exported model fails where the live one answers.
    """
    difference, largest, unlike = 0.0, 0.0, ""
    for inputs in batches:
        expected = live(inputs)
        try:
            found = exported(inputs)
        except Exception as error:  # of whichever runtime
            shapes = ", ".join(str(tuple(each.shape)) for each in inputs)
            raise InvalidModel(
                f"The exported model fails on inputs of shape {shapes}: {str(error).partition(chr(10))[0][:300]}",
                why="The live model answers them.",
                fix="Something was fixed at the example's size: export with --no-dynamic-batch, or to pt2.",
            ) from error
        unlike = unlike or _unlike(inputs, expected, found)
        pairs = list(zip(expected, found, strict=False))
        apart = [_difference(a, b) for a, b in pairs] + [float("inf")] * (len(expected) != len(found))
        difference = max(difference, *apart)
        largest = max(largest, *(_largest(each) for each in expected))
    sizes = tuple(len(inputs[0]) for inputs in batches)
    return Parity(
        samples=sum(sizes),
        batches=sizes,
        difference=difference,
        largest=largest,
        tolerance=tolerance,
        unlike=unlike,
    )


def _unlike(inputs: Inputs, expected: Sequence[Tensor], found: Sequence[Tensor]) -> str:
    live, exported = (", ".join(_kind(each) for each in outputs) for outputs in (expected, found))
    given = ", ".join(_kind(each) for each in inputs)
    return "" if live == exported else f"for {given} it gives {exported}, the live model {live}"


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}[{', '.join(map(str, tensor.shape))}]"


def _difference(expected: Tensor, found: Tensor) -> float:
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return float("inf")
    a, b = expected.double(), found.double()
    same = (a == b) | (a.isnan() & b.isnan())
    apart = torch.where(same, torch.zeros_like(a), (a - b).abs())
    return float(apart.nan_to_num(nan=float("inf")).max()) if apart.numel() else 0.0


def _largest(output: Tensor) -> float:
    finite = output.double().abs().nan_to_num(nan=0.0, posinf=0.0)
    return float(finite.max()) if finite.numel() else 0.0
