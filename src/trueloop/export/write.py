"""Export a model: write it, read it again, compare the outputs for real samples, and describe it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trueloop.core.errors import InvalidConfig, InvalidModel
from trueloop.export.artifact import Description, write_manifest
from trueloop.export.call_signature import DTYPES, CallModel, Inputs, check_eval_mode, name_outputs, wrap_model
from trueloop.export.formats import WriteResult, open_model, write
from trueloop.export.io_description import FILES, Answer, Array, Dtype, Kind, Reading, SizeRange
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
    """How to convert a user's file to the model's input."""
    answer: Answer = field(default_factory=Answer)
    """Meaning of the first output: class names, and whether it is logits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportResult:
    """Result of an export."""

    description: Description
    parity: Parity
    notes: tuple[str, ...]
    """Warnings of PyTorch during the export."""
    digest: str
    """SHA-256 of the manifest, which contains the digests of the other files."""


def export(model: nn.Module, spec: ExportSpec, folder: Path, metadata: Mapping[str, Any]) -> ExportResult:
    """Write a model and its manifest into a folder, and check that its outputs equal the outputs of ``model``.

    Args:
        model: model on the CPU, with every module in eval mode; it is not changed.
        spec: settings and samples.
        folder: existing, empty folder.
        metadata: JSON-ready facts for the manifest.

    Raises:
        InvalidModel: the model is in train mode, torch cannot write it, or the outputs differ by more than allowed.
        InvalidConfig: there are no samples.
        MissingExtra: a package that the format needs is not installed.

    Cost: seconds, mostly PyTorch's tracing and, for ONNX, the optimization of the graph.
    """
    check_eval_mode(model)
    if not spec.batches or not 0 <= spec.tolerance < float("inf"):
        raise InvalidConfig(
            f"An export cannot be checked with {len(spec.batches)} batches and the tolerance {spec.tolerance}.",
            fix="Give at least one batch of real samples, and a finite tolerance of 0 or more.",
        )
    batches = spec.batches if spec.dynamic_batch else list(_single_samples(spec.batches))
    dynamic = _dynamic_dims(batches, batch=spec.dynamic_batch)
    example = max(batches, key=lambda inputs: _smallest_dynamic_size(inputs, dynamic))
    result = write(spec.kind, model, example, dynamic, folder / FILES[spec.kind])
    original, exported = wrap_model(model), open_model(spec.kind, folder / FILES[spec.kind])
    parity = compare_outputs(original, exported, batches, tolerance=spec.tolerance)
    if not parity.passed:
        raise InvalidModel(
            f"The outputs of the exported model differ: {parity}.",
            why="The served model would not be equal to the model that was evaluated.",
            fix="Look in forward for random numbers and for state from earlier calls; --tolerance allows larger "
            "differences.",
        )
    inputs = _describe_inputs(spec, batches, dynamic, result, original=original, exported=exported)
    outputs = _describe_outputs(model, batches, spec.dynamic_batch)
    description = Description(kind=spec.kind, inputs=inputs, outputs=outputs, reading=spec.reading, answer=spec.answer)
    record = {**metadata, "parity": {**asdict(parity), "allowed": parity.allowed}, "notes": list(result.notes)}
    digest = write_manifest(folder, description, record)
    return ExportResult(description=description, parity=parity, notes=result.notes, digest=digest)


def _single_samples(batches: Iterable[Inputs]) -> Iterator[Inputs]:
    """Yield each sample as a batch of one."""
    for inputs in batches:
        for index in range(len(inputs[0])):
            yield tuple(tensor[index : index + 1] for tensor in inputs)


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


def _smallest_dynamic_size(inputs: Inputs, dynamic: Sequence[frozenset[int]]) -> int:
    """Return the smallest size of a dynamic dimension: torch.export fixes a dimension of size 1 in the example."""
    sizes = (tensor.shape[dim] for tensor, dims in zip(inputs, dynamic, strict=True) for dim in dims)
    return min(sizes, default=1)


def _describe_inputs(
    spec: ExportSpec,
    batches: Sequence[Inputs],
    dynamic: Sequence[frozenset[int]],
    result: WriteResult,
    *,
    original: CallModel,
    exported: CallModel,
) -> tuple[Array, ...]:
    """Describe the inputs with the sizes that the exporter has proven correct, else with the sizes of the samples."""
    arrays: list[Array] = []
    for index, name in enumerate(spec.names):
        shape: list[SizeRange] = []
        for dim in range(batches[0][index].dim()):
            sizes = [inputs[index].shape[dim] for inputs in batches]
            if dim not in dynamic[index]:
                shape.append(SizeRange(lowest=sizes[0], highest=sizes[0]))
            elif dim == 0:
                shape.append(SizeRange(lowest=1))
            else:
                proven = result.sizes[index].get(dim, SizeRange(lowest=min(sizes), highest=max(sizes)))
                same_size = [
                    other
                    for other in range(len(batches[0]))
                    if dim in dynamic[other]
                    and all(inputs[other].shape[dim] == inputs[index].shape[dim] for inputs in batches)
                ]
                shape.append(_include_size_one(proven, batches[0], same_size, dim, original, exported))
        dtype: Dtype = DTYPES[batches[0][index].dtype]  # pyright: ignore[reportAssignmentType] - DTYPES has only Dtypes
        lowest, highest = (0.0, 255.0) if spec.reading.kind == "text" else (None, None)  # text is passed as bytes
        arrays.append(Array(name=name, dtype=dtype, shape=tuple(shape), lowest=lowest, highest=highest))
    return tuple(arrays)


def _include_size_one(
    proven: SizeRange, example: Inputs, same_size: Sequence[int], dim: int, original: CallModel, exported: CallModel
) -> SizeRange:
    """Allow a size of 1 if the exported model works for it, because torch.export never proves sizes below 2.

    Args:
        proven: proven sizes.
        example: a batch.
        same_size: indices of the inputs that always have the same size in this dimension.
        dim: the dimension.
        original: the original model.
        exported: the exported model.
    """
    if proven.lowest != 2:
        return proven
    shortened = [tensor.narrow(dim, 0, 1) if index in same_size else tensor for index, tensor in enumerate(example)]
    try:
        works = compare_outputs(original, exported, [tuple(shortened)]).passed
    except (InvalidModel, RuntimeError, ValueError, IndexError):
        works = False
    return SizeRange(lowest=1 if works else 2, highest=proven.highest)


def _describe_outputs(model: nn.Module, batches: Sequence[Inputs], dynamic_batch: bool) -> tuple[Array, ...]:
    with torch.inference_mode():
        outputs = [name_outputs(model(*inputs)) for inputs in batches]
    return tuple(_describe_output(name, [tensors[name] for tensors in outputs], dynamic_batch) for name in outputs[0])


def _describe_output(name: str, tensors: Sequence[Tensor], dynamic_batch: bool) -> Array:
    first = tensors[0]
    shape: list[SizeRange] = []
    for dim in range(first.dim()):
        varies = len({tensor.shape[dim] for tensor in tensors}) > 1 or (dim == 0 and dynamic_batch)
        shape.append(SizeRange(lowest=1) if varies else SizeRange(lowest=first.shape[dim], highest=first.shape[dim]))
    dtype: Dtype = DTYPES[first.dtype]  # pyright: ignore[reportAssignmentType] - DTYPES has only Dtypes
    return Array(name=name, dtype=dtype, shape=tuple(shape))
