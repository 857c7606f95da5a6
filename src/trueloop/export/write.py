"""Exports a model: writes it, reads it again, compares the outputs for real samples, and describes it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trueloop.core.errors import InvalidConfig, InvalidModel
from trueloop.export.artifact import Description, write_manifest
from trueloop.export.call_signature import DTYPES, Inputs, Run, as_run, check_eval_mode, name_outputs
from trueloop.export.formats import WriteResult, open_model, write
from trueloop.export.io_description import FILES, Answer, Array, Dtype, Extent, Kind, Reading
from trueloop.export.parity import TOLERANCE, Parity, compare_outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSpec:
    """Settings and samples of an export."""

    kind: Kind
    names: tuple[str, ...]
    """Names of the model's inputs."""
    batches: Sequence[Inputs]
    """Batches of real samples; the first one has two samples or more."""
    dynamic_batch: bool = True
    """Whether the exported model takes batches of any size; False = exactly one sample at a time."""
    tolerance: float = TOLERANCE
    reading: Reading = field(default_factory=Reading)
    answer: Answer = field(default_factory=Answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportResult:
    """Result of an export."""

    description: Description
    parity: Parity
    notes: tuple[str, ...]
    digest: str


def export(model: nn.Module, spec: ExportSpec, folder: Path, about: Mapping[str, Any]) -> ExportResult:
    """Write a model and its manifest into a folder, and check that its outputs equal those of the original model.

    Args:
        model: model on the CPU, with every module in eval mode; it is not changed.
        spec: settings and samples.
        folder: existing, empty folder.
        about: JSON-ready facts for the manifest.

    Raises:
        InvalidModel: the model is in train mode, torch cannot write it, or the outputs differ by more than allowed.
        InvalidConfig: there are no samples.
        MissingExtra: a package that the format needs is not installed.

    Cost: seconds, mostly torch's tracing and, for ONNX, its optimizer.
    """
    check_eval_mode(model)
    if not spec.batches or not 0 <= spec.tolerance < float("inf"):
        raise InvalidConfig(
            f"The outputs would be compared for {len(spec.batches)} batches, with tolerance {spec.tolerance}.",
            fix="Give at least one batch of real samples, and a finite tolerance of 0 or more.",
        )
    batches = spec.batches if spec.dynamic_batch else [one for each in spec.batches for one in _split_batch(each)]
    dynamic = _dynamic_dims(batches, batch=spec.dynamic_batch)
    example = max(batches, key=lambda inputs: min(_dynamic_sizes(inputs, dynamic), default=1))
    written = write(spec.kind, model, example, dynamic, folder / FILES[spec.kind])
    reopened, reference = open_model(spec.kind, folder / FILES[spec.kind]), as_run(model)
    agreement = compare_outputs(reference, reopened, batches, tolerance=spec.tolerance)
    if not agreement.passed:
        raise InvalidModel(
            f"The outputs of the exported model differ: {agreement}.",
            why="The served model would not be the one that was evaluated.",
            fix="Look in forward for random numbers and for state from earlier calls; --tolerance allows larger "
            "differences.",
        )
    inputs = _describe_inputs(spec, batches, dynamic, written, (reference, reopened))
    outputs = _describe_outputs(model, batches, spec.dynamic_batch)
    description = Description(kind=spec.kind, inputs=inputs, outputs=outputs, reading=spec.reading, answer=spec.answer)
    record = {**about, "parity": {**asdict(agreement), "allowed": agreement.allowed}, "notes": list(written.notes)}
    digest = write_manifest(folder, description, record)
    return ExportResult(description=description, parity=agreement, notes=written.notes, digest=digest)


def _split_batch(inputs: Inputs) -> list[Inputs]:
    return [tuple(tensor[index : index + 1] for tensor in inputs) for index in range(len(inputs[0]))]


def _dynamic_dims(batches: Sequence[Inputs], *, batch: bool) -> list[frozenset[int]]:
    """Return for each input the dimensions whose size varies, and the batch dimension if ``batch`` is True."""
    dynamic: list[frozenset[int]] = []
    for index, first in enumerate(batches[0]):
        shapes = [inputs[index].shape for inputs in batches]
        if any(len(shape) != first.dim() for shape in shapes):
            raise InvalidModel(
                f"Input {index} has {first.dim()} dimensions in one batch, but another number in others.",
                fix="Export a model whose inputs always have the same number of dimensions.",
            )
        varying = {dim for dim in range(1, first.dim()) if len({shape[dim] for shape in shapes}) > 1}
        dynamic.append(frozenset(varying | ({0} if batch and first.dim() else set[int]())))
    return dynamic


def _dynamic_sizes(inputs: Inputs, dynamic: Sequence[frozenset[int]]) -> list[int]:
    return [tensor.shape[dim] for tensor, dims in zip(inputs, dynamic, strict=True) for dim in dims]


def _describe_inputs(
    spec: ExportSpec,
    batches: Sequence[Inputs],
    dynamic: Sequence[frozenset[int]],
    written: WriteResult,
    runs: tuple[Run, Run],
) -> tuple[Array, ...]:
    """Describe the inputs, with the sizes that the exporter has proven correct, or else those of the samples."""
    arrays: list[Array] = []
    for index, name in enumerate(spec.names):
        shape: list[Extent] = []
        for dim in range(batches[0][index].dim()):
            sizes = [inputs[index].shape[dim] for inputs in batches]
            if dim not in dynamic[index]:
                shape.append(Extent(lowest=sizes[0], highest=sizes[0]))
            elif dim == 0:
                shape.append(Extent(lowest=1))
            else:
                proven = written.extents[index].get(dim, Extent(lowest=min(sizes), highest=max(sizes)))
                shared = [
                    other
                    for other in range(len(batches[0]))
                    if dim in dynamic[other]
                    and all(inputs[other].shape[dim] == inputs[index].shape[dim] for inputs in batches)
                ]
                shape.append(_include_size_one(proven, batches[0], shared, dim, runs))
        text = spec.reading.kind == "text"
        dtype: Dtype = DTYPES[batches[0][index].dtype]  # pyright: ignore[reportAssignmentType] - names of Dtype
        lowest, highest = (0.0, 255.0) if text else (None, None)
        arrays.append(Array(name=name, dtype=dtype, shape=tuple(shape), lowest=lowest, highest=highest))
    return tuple(arrays)


def _include_size_one(
    extent: Extent, example: Inputs, shared: Sequence[int], dim: int, runs: tuple[Run, Run]
) -> Extent:
    """Allow a size of 1 if the exported model works for it, because torch.export never proves sizes below 2.

    Args:
        extent: proven sizes.
        example: a batch.
        shared: indices of the inputs that always have the same size in this dimension.
        dim: the dimension.
        runs: the original model and the exported one.
    """
    if extent.lowest != 2:
        return extent
    short = tuple(each.narrow(dim, 0, 1) if index in shared else each for index, each in enumerate(example))
    try:
        fits = compare_outputs(*runs, [short]).passed
    except (InvalidModel, RuntimeError, ValueError, IndexError):
        fits = False
    return Extent(lowest=1 if fits else 2, highest=extent.highest)


def _describe_outputs(model: nn.Module, batches: Sequence[Inputs], dynamic_batch: bool) -> tuple[Array, ...]:
    with torch.inference_mode():
        outputs = [name_outputs(model(*inputs)) for inputs in batches]
    return tuple(_describe_output(name, [each[name] for each in outputs], dynamic_batch) for name in outputs[0])


def _describe_output(name: str, tensors: Sequence[Tensor], dynamic_batch: bool) -> Array:
    first = tensors[0]
    shape: list[Extent] = []
    for dim in range(first.dim()):
        varies = len({each.shape[dim] for each in tensors}) > 1 or (dim == 0 and dynamic_batch)
        shape.append(Extent(lowest=1) if varies else Extent(lowest=first.shape[dim], highest=first.shape[dim]))
    dtype: Dtype = DTYPES[first.dtype]  # pyright: ignore[reportAssignmentType] - names of Dtype
    return Array(name=name, dtype=dtype, shape=tuple(shape))
