"""An exported model that answers samples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from trueloop.core.errors import InvalidModel
from trueloop.export.artifact import Artifact, Description, open_artifact
from trueloop.export.call_signature import Run
from trueloop.export.formats import open_model
from trueloop.export.request_samples import Sample, probabilities

Outputs = tuple[Tensor, ...]
"""Of one sample: each output without the batch dimension."""


class Model:
    """Runs samples through an artifact, those of one shape together.

    Args:
        artifact: verified.
        run: its file, opened.
    """

    def __init__(self, artifact: Artifact, run: Run) -> None:
        self.artifact = artifact
        self.description: Description = artifact.description
        self._run = run

    @classmethod
    def open(cls, folder: Path, *, expected: str = "", threads: int | None = None) -> Model:
        """Verify an artifact and open it.

        Args:
            folder: as `trueloop export` made it.
            expected: the digest it must have; "" = any.
            threads: of onnxruntime.

        Raises:
            CheckpointError: it is damaged, another one, or would run code when it is opened.
            MissingExtra: what its format needs is not installed.
        """
        artifact = open_artifact(folder, expected=expected)
        return cls(artifact, open_model(artifact.description.kind, artifact.file, threads=threads))

    def run(self, samples: Sequence[Sample]) -> list[Outputs]:
        """Answer samples in their order; those of one shape go through together.

        Raises:
            InvalidModel: it fails on them.
        """
        groups: dict[tuple[tuple[int, ...], ...], list[int]] = {}
        for place, sample in enumerate(samples):
            groups.setdefault(shape_of(sample), []).append(place)
        found: dict[int, Outputs] = {}
        most = self.description.largest_batch or len(samples)
        for places in groups.values():
            for start in range(0, len(places), most):
                chosen = places[start : start + most]
                found.update(zip(chosen, self._together([samples[place] for place in chosen]), strict=True))
        return [found[place] for place in range(len(samples))]

    def _together(self, samples: Sequence[Sample]) -> list[Outputs]:
        inputs = [torch.from_numpy(np.stack(column)) for column in zip(*samples, strict=True)]
        try:
            outputs = self._run(inputs)
        except Exception as error:  # whatever the runtime raises
            raise InvalidModel(
                f"The model fails on this input: {str(error).partition(chr(10))[0][:200]}",
                fix="Give values such as it was trained on.",
            ) from error
        if any(output.dim() == 0 or len(output) != len(samples) for output in outputs):
            raise InvalidModel(
                f"For {len(samples)} samples the outputs have shapes {[tuple(each.shape) for each in outputs]}.",
                why="Which part of it belongs to which sample is not known.",
                fix="Export a model whose outputs have the batch as their first dimension.",
            )
        return [tuple(output[place] for output in outputs) for place in range(len(samples))]


def shape_of(sample: Sample) -> tuple[tuple[int, ...], ...]:
    """Return what samples must have in common to go through together."""
    return tuple(array.shape for array in sample)


def answer(description: Description, outputs: Outputs, *, raw: bool = False) -> dict[str, Any]:
    """Say what a sample's outputs mean, JSON-ready; what is not finite as None.

    Args:
        description: of the model.
        outputs: of one sample.
        raw: give the numbers as well, by the names of the outputs.
    """
    meaning, first = description.answer, outputs[0]
    told: dict[str, Any] = {}
    if meaning.kind == "class":
        told = _chosen(first, meaning.labels, softmax=meaning.softmax)
    elif meaning.kind == "next_byte":
        chosen = _chosen(first[-1], (), softmax=True)
        told = {"byte": chosen["index"], "text": _printable(chosen["index"]), "probability": chosen["probability"]}
    elif meaning.kind == "value":
        told = {"value": _plain(first.reshape(()).tolist())}
    if raw or not told:
        names = [each.name for each in description.outputs]
        told["outputs"] = {name: _plain(tensor.tolist()) for name, tensor in zip(names, outputs, strict=True)}
    return told


def _chosen(scores: Tensor, labels: Sequence[str], *, softmax: bool) -> dict[str, Any]:
    numbers = [float(score) for score in scores.double().tolist()]
    if not all(map(_finite, numbers)):
        return {"label": None, "index": None, "probability": None}
    index = numbers.index(max(numbers))
    told: dict[str, Any] = {"label": labels[index]} if labels else {}
    told["index"] = index
    return {**told, "probability": probabilities(numbers)[index]} if softmax else told


def _finite(number: float) -> bool:
    return number - number == 0.0


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(each) for each in cast("list[Any]", value)]
    return None if isinstance(value, float) and not _finite(value) else value


def _printable(byte: int | None) -> str | None:
    return chr(byte) if byte is not None and 32 <= byte < 127 else None
