"""Exporting: write, read back, compare on real samples, describe; nothing is left where any of it fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trueloop.core.errors import InvalidConfig, InvalidModel
from trueloop.export.artifact import Description, write_manifest
from trueloop.export.call_signature import DTYPES, Inputs, Run, live, refuse_train_mode, results
from trueloop.export.formats import Written, open_model, write
from trueloop.export.io_description import FILES, Answer, Array, Dtype, Extent, Kind, Reading
from trueloop.export.parity import TOLERANCE, Parity, parity


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to be exported, and how."""

    kind: Kind
    names: tuple[str, ...]
    """Of the model's inputs."""
    batches: Sequence[Inputs]
    """Real samples; the first batch is the example, of two or more."""
    dynamic_batch: bool = True
    """False: exactly one sample at a time."""
    tolerance: float = TOLERANCE
    reading: Reading = field(default_factory=Reading)
    answer: Answer = field(default_factory=Answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written."""

    description: Description
    parity: Parity
    notes: tuple[str, ...]
    digest: str


def export(model: nn.Module, order: Order, folder: Path, about: Mapping[str, Any]) -> Exported:
    """Write a model and its manifest into a folder, once its answers are proven to be those of the live one.

    Args:
        model: on the CPU, in eval mode as a whole; not changed.
        order: what and how.
        folder: exists and is empty.
        about: JSON-ready; put into the manifest beside the parity.

    Raises:
        InvalidModel: it is in train mode, torch cannot write it, or the answers differ by more than is allowed.
        InvalidConfig: no samples.
        MissingExtra: what the format needs is not installed.

    Cost: seconds, most of it torch's tracing; with ONNX its optimiser.
    """
    refuse_train_mode(model)
    if not order.batches or not 0 <= order.tolerance < float("inf"):
        raise InvalidConfig(
            f"{len(order.batches)} batches to compare on, tolerance {order.tolerance}.",
            fix="Parity is proven on real samples: give one or more, and a tolerance of 0 or more.",
        )
    batches = order.batches if order.dynamic_batch else [one for each in order.batches for one in _apart(each)]
    moving = _moving(batches, batch=order.dynamic_batch)
    example = max(batches, key=lambda inputs: min(_sizes(inputs, moving), default=1))
    written = write(order.kind, model, example, moving, folder / FILES[order.kind])
    reopened, reference = open_model(order.kind, folder / FILES[order.kind]), live(model)
    agreement = parity(reference, reopened, batches, tolerance=order.tolerance)
    if not agreement.passed:
        raise InvalidModel(
            f"The exported model is another one: {agreement}.",
            why="What is served would not be what was measured.",
            fix="Look for randomness or values kept between calls in forward; --tolerance allows more.",
        )
    inputs = _inputs(order, batches, moving, written, (reference, reopened))
    outputs = _outputs(model, batches, order.dynamic_batch)
    description = Description(
        kind=order.kind, inputs=inputs, outputs=outputs, reading=order.reading, answer=order.answer
    )
    told = {**about, "parity": {**asdict(agreement), "allowed": agreement.allowed}, "notes": list(written.notes)}
    digest = write_manifest(folder, description, told)
    return Exported(description=description, parity=agreement, notes=written.notes, digest=digest)


def _apart(inputs: Inputs) -> list[Inputs]:
    return [tuple(tensor[place : place + 1] for tensor in inputs) for place in range(len(inputs[0]))]


def _moving(batches: Sequence[Inputs], *, batch: bool) -> list[frozenset[int]]:
    """Return for each input the dimensions in which the samples differ, the batch among them where it is asked for."""
    found: list[frozenset[int]] = []
    for place, first in enumerate(batches[0]):
        others = [inputs[place].shape for inputs in batches]
        if any(len(shape) != first.dim() for shape in others):
            raise InvalidModel(
                f"Input {place} has {first.dim()} dimensions at times, and others at other times.",
                fix="Export a model whose inputs keep their number of dimensions.",
            )
        differ = {dim for dim in range(1, first.dim()) if len({shape[dim] for shape in others}) > 1}
        found.append(frozenset(differ | ({0} if batch and first.dim() else set[int]())))
    return found


def _sizes(inputs: Inputs, moving: Sequence[frozenset[int]]) -> list[int]:
    return [tensor.shape[dim] for tensor, dims in zip(inputs, moving, strict=True) for dim in dims]


def _inputs(
    order: Order,
    batches: Sequence[Inputs],
    moving: Sequence[frozenset[int]],
    written: Written,
    runs: tuple[Run, Run],
) -> tuple[Array, ...]:
    """Describe the inputs: sizes proven by the exporter, else those seen."""
    arrays: list[Array] = []
    for place, name in enumerate(order.names):
        shape: list[Extent] = []
        for dim in range(batches[0][place].dim()):
            seen = [inputs[place].shape[dim] for inputs in batches]
            if dim not in moving[place]:
                shape.append(Extent(lowest=seen[0], highest=seen[0]))
            elif dim == 0:
                shape.append(Extent(lowest=1))
            else:
                proven = written.extents[place].get(dim, Extent(lowest=min(seen), highest=max(seen)))
                shared = [
                    other
                    for other in range(len(batches[0]))
                    if dim in moving[other]
                    and all(inputs[other].shape[dim] == inputs[place].shape[dim] for inputs in batches)
                ]
                shape.append(_from_one(proven, batches[0], shared, dim, runs))
        text = order.reading.kind == "text"
        dtype: Dtype = DTYPES[batches[0][place].dtype]  # pyright: ignore[reportAssignmentType] - Dtype's own names
        lowest, highest = (0.0, 255.0) if text else (None, None)
        arrays.append(Array(name=name, dtype=dtype, shape=tuple(shape), lowest=lowest, highest=highest))
    return tuple(arrays)


def _from_one(extent: Extent, example: Inputs, shared: Sequence[int], dim: int, runs: tuple[Run, Run]) -> Extent:
    """Try a size of 1, which torch.export leaves out of its proof, where 2 is the smallest proven.

    Args:
        extent: as it was proven.
        example: a batch.
        shared: the inputs whose sizes go together in this dimension.
        dim: which.
        runs: the live model and the exported one.
    """
    if extent.lowest != 2:
        return extent
    short = tuple(each.narrow(dim, 0, 1) if place in shared else each for place, each in enumerate(example))
    try:
        fits = parity(*runs, [short]).passed
    except (InvalidModel, RuntimeError, ValueError, IndexError):
        fits = False
    return Extent(lowest=1 if fits else 2, highest=extent.highest)


def _outputs(model: nn.Module, batches: Sequence[Inputs], dynamic_batch: bool) -> tuple[Array, ...]:
    with torch.inference_mode():
        given = [results(model(*inputs)) for inputs in batches]
    return tuple(_output(name, [each[name] for each in given], dynamic_batch) for name in given[0])


def _output(name: str, tensors: Sequence[Tensor], dynamic_batch: bool) -> Array:
    first = tensors[0]
    shape: list[Extent] = []
    for dim in range(first.dim()):
        seen = {each.shape[dim] for each in tensors}
        moves = len(seen) > 1 or (dim == 0 and dynamic_batch)
        shape.append(Extent(lowest=1) if moves else Extent(lowest=first.shape[dim], highest=first.shape[dim]))
    dtype: Dtype = DTYPES[first.dtype]  # pyright: ignore[reportAssignmentType] - Dtype's own names
    return Array(name=name, dtype=dtype, shape=tuple(shape))
