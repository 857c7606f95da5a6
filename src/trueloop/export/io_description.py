"""What goes into an exported model and what comes out of it, in words that a manifest can hold.

Everything here is a record of bounded fields, read back by `ground.asked`: a manifest is input like any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from trueloop.core.untrusted_input import Bounds

Kind = Literal["pt2", "onnx", "torchscript"]
FILES: Final[dict[Kind, str]] = {"pt2": "model.pt2", "onnx": "model.onnx", "torchscript": "model.ts"}

Dtype = Literal["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"]
"""What both torch and NumPy know."""

Word = Annotated[str, Bounds(0, 200)]
Size = Annotated[int, Bounds(0, 2**31)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """One dimension."""

    lowest: Size
    highest: Size | None = None
    """None = as many as there are."""

    @property
    def fixed(self) -> bool:
        """It has one size only."""
        return self.lowest == self.highest

    def __str__(self) -> str:
        if self.fixed:
            return str(self.lowest)
        return f"{self.lowest}…{'' if self.highest is None else self.highest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    """One input or output of a model."""

    name: Word
    dtype: Dtype
    shape: Annotated[tuple[Extent, ...], Bounds(0, 16)]
    """The first dimension is the batch."""
    lowest: Annotated[float, Bounds(-(2**63), 2**63)] | None = None
    """Values allowed, where that is known: of tokens, the smallest one."""
    highest: Annotated[float, Bounds(-(2**63), 2**63)] | None = None

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How a file of the user's becomes the model's input; what was done to the data before training is done again."""

    kind: Literal["array", "image", "table", "text"] = "array"
    """What it is made of. An array may be given for each of them, prepared as in training."""
    mode: Literal["L", "RGB"] = "L"
    """Of images: grey, or three colours."""
    divide: Annotated[float, Bounds(1e-30, 1e30)] = 255.0
    """Of images: pixels are divided by this."""
    columns: Annotated[tuple[Word, ...], Bounds(0, 100_000)] = ()
    """Of tables: the names, in the order of training."""
    length: Annotated[int, Bounds(1, 2**31)] | None = None
    """Of texts: bytes at most."""
    words: Annotated[str, Bounds(0, 2000)] = "Arrays as in training."
    """The same for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the model's first output means."""

    kind: Literal["array", "class", "value", "next_byte"] = "array"
    labels: Annotated[tuple[Word, ...], Bounds(0, 100_000)] = ()
    """Of classes, by index."""
    softmax: bool = True
    """Of classes: the output holds logits or log-probabilities, of which softmax makes probabilities."""
