"""Run samples through an exported model, and interpret its outputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from trueloop.core.errors import InvalidModel
from trueloop.export.artifact import Artifact, Description, open_artifact
from trueloop.export.call_signature import CallModel
from trueloop.export.formats import open_model
from trueloop.export.request_samples import Sample, probabilities

Outputs = tuple[Tensor, ...]
"""The outputs for one sample, without the batch dimension."""


class Model:
    """Runs samples through an artifact, in batches of samples of the same shape.

    Args:
        artifact: artifact with verified checksums.
        call_model: function that calls the opened model.
    """

    def __init__(self, artifact: Artifact, call_model: CallModel) -> None:
        self.artifact = artifact
        self.description: Description = artifact.description
        self._call_model = call_model

    @classmethod
    def open(cls, folder: Path, *, expected: str = "", threads: int | None = None) -> Model:
        """Verify an artifact and open it.

        Args:
            folder: folder from `trueloop export`.
            expected: expected digest; "" = any.
            threads: number of threads of onnxruntime.

        Raises:
            CheckpointError: the artifact is damaged, has another digest, or would run code when opened.
            MissingExtra: a package that the format needs is not installed.
        """
        artifact = open_artifact(folder, expected=expected)
        return cls(artifact, open_model(artifact.description.kind, artifact.file, threads=threads))

    def run(self, samples: Sequence[Sample]) -> list[Outputs]:
        """Return the outputs for each sample, in order; samples of the same shape are batched.

        Raises:
            InvalidModel: the model raised an error.
        """
        groups: dict[tuple[tuple[int, ...], ...], list[int]] = {}
        for index, sample in enumerate(samples):
            groups.setdefault(shape_of(sample), []).append(index)
        outputs: dict[int, Outputs] = {}
        largest = self.description.largest_batch or len(samples)
        for indices in groups.values():
            for start in range(0, len(indices), largest):
                batch = indices[start : start + largest]
                outputs.update(zip(batch, self._run_batch([samples[index] for index in batch]), strict=True))
        return [outputs[index] for index in range(len(samples))]

    def _run_batch(self, samples: Sequence[Sample]) -> list[Outputs]:
        inputs = [torch.from_numpy(np.stack(column)) for column in zip(*samples, strict=True)]
        try:
            outputs = self._call_model(inputs)
        except Exception as error:  # the runtimes raise errors of any type
            raise InvalidModel(
                f"The model fails on this input: {str(error).partition(chr(10))[0][:200]}",
                fix="Give values like those of the training data.",
            ) from error
        if any(output.dim() == 0 or len(output) != len(samples) for output in outputs):
            raise InvalidModel(
                f"For {len(samples)} samples the outputs have shapes {[tuple(output.shape) for output in outputs]}.",
                why="The outputs cannot be assigned to samples.",
                fix="Export a model whose outputs have the batch as their first dimension.",
            )
        return [tuple(output[index] for output in outputs) for index in range(len(samples))]


def shape_of(sample: Sample) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of a sample's arrays; they must be equal for all samples of a batch."""
    return tuple(array.shape for array in sample)


def interpret_outputs(description: Description, outputs: Outputs, *, raw: bool = False) -> dict[str, Any]:
    """Interpret the outputs of one sample as JSON-ready values; non-finite numbers become None.

    Args:
        description: description of the model.
        outputs: outputs of one sample.
        raw: also include the numbers by output name.
    """
    answer, first = description.answer, outputs[0]
    result: dict[str, Any] = {}
    if answer.kind == "class":
        result = _predict_class(first, answer.labels, softmax=answer.softmax)
    elif answer.kind == "next_byte":
        predicted = _predict_class(first[-1], (), softmax=True)
        byte = predicted["index"]
        text = chr(byte) if byte is not None and 32 <= byte < 127 else None  # printable ASCII
        result = {"byte": byte, "text": text, "probability": predicted["probability"]}
    elif answer.kind == "value":
        result = {"value": _json_value(first.reshape(()).tolist())}
    if raw or not result:
        names = [output.name for output in description.outputs]
        result["outputs"] = {name: _json_value(tensor.tolist()) for name, tensor in zip(names, outputs, strict=True)}
    return result


def _predict_class(scores: Tensor, labels: Sequence[str], *, softmax: bool) -> dict[str, Any]:
    numbers = [float(score) for score in scores.double().tolist()]
    if not all(map(math.isfinite, numbers)):
        return {"label": None, "index": None, "probability": None}
    index = numbers.index(max(numbers))
    result: dict[str, Any] = {"label": labels[index]} if labels else {}
    result["index"] = index
    return {**result, "probability": probabilities(numbers)[index]} if softmax else result


def _json_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_json_value(item) for item in cast("list[Any]", value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value
