"""Describe the inputs and outputs of an exported model as records for its manifest.

A manifest is untrusted input, so every record has bounded fields, and `core.untrusted_input` parses it.
"""

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from trueloop.core.untrusted_input import Bounds

Kind = Literal["pt2", "onnx", "torchscript"]
FILES: Final[dict[Kind, str]] = {"pt2": "model.pt2", "onnx": "model.onnx", "torchscript": "model.ts"}

Dtype = Literal["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"]
"""Types that both torch and NumPy support."""

Word = Annotated[str, Bounds(0, 200)]
Size = Annotated[int, Bounds(0, 2**31)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRange:
    """Allowed sizes of one dimension."""

    lowest: Size
    highest: Size | None = None
    """Largest size; None = unbounded."""

    def allows(self, size: int) -> bool:
        """Return True if a size is in the range."""
        return self.lowest <= size and (self.highest is None or size <= self.highest)

    def __str__(self) -> str:
        if self.lowest == self.highest:
            return str(self.lowest)
        return f"{self.lowest}…{'' if self.highest is None else self.highest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    """One input or output of a model."""

    name: Word
    dtype: Dtype
    shape: Annotated[tuple[SizeRange, ...], Bounds(0, 16)]
    """Allowed sizes; the first dimension is the batch."""
    lowest: Annotated[float, Bounds(-(2**63), 2**63)] | None = None
    """Smallest allowed value, if known."""
    highest: Annotated[float, Bounds(-(2**63), 2**63)] | None = None
    """Largest allowed value, if known."""

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How to convert a user's file to the model's input, with the same preprocessing as in training."""

    kind: Literal["array", "image", "table", "text"] = "array"
    """Kind of file. An array with the preprocessing of training is always accepted as well."""
    mode: Literal["L", "RGB"] = "L"
    """Color mode of images: grayscale or RGB."""
    divide: Annotated[float, Bounds(1e-30, 1e30)] = 255.0
    """Number by which pixel values are divided."""
    columns: Annotated[tuple[Word, ...], Bounds(0, 100_000)] = ()
    """Names of table columns, in the order of training."""
    length: Annotated[int, Bounds(1, 2**31)] | None = None
    """Largest length of a text in bytes."""
    description: Annotated[str, Bounds(0, 2000)] = "Arrays as in training."
    """Description of the input for the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Meaning of the model's first output."""

    kind: Literal["array", "class", "value", "next_byte"] = "array"
    labels: Annotated[tuple[Word, ...], Bounds(0, 100_000)] = ()
    """Class names by index."""
    softmax: bool = True
    """True if the output is logits or log-probabilities, which softmax converts to probabilities."""
