"""Export the model of a run to a folder, atomically, after checking it on real samples of its recipe."""

from __future__ import annotations

import itertools
import platform
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trueloop.app.export.trained_model import TrainedModel
from trueloop.app.training.run_folder import numbered_names
from trueloop.core.errors import InvalidData, InvalidModel, RunFolderError
from trueloop.export.artifact import open_artifact
from trueloop.export.call_signature import Inputs, bind_tensors, name_outputs
from trueloop.export.io_description import Answer, Kind, Reading
from trueloop.export.write import ExportResult, ExportSpec, export
from trueloop.training.checkpoint.durable_files import sync
from trueloop.training.evaluation.evaluate import eval_mode
from trueloop.training.objective import as_objective
from trueloop.training.seeding import preserve_generators
from trueloop.version import __version__

if TYPE_CHECKING:
    from torch import Tensor, nn

    from trueloop.recipes.recipe import Parts

BATCH_SIZES: Final = (8, 5, 3, *[1] * 16)
"""Sizes of the compared batches; the batches of one sample show which dimensions vary from sample to sample."""
TEMPORARY_PREFIX: Final = ".exporting-"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedRun:
    """An exported model that was written and verified."""

    folder: Path
    exported: ExportResult
    weights: str
    """Source of the weights: "final", or the name of a checkpoint."""
    notes: tuple[str, ...]


def export_run(
    source: TrainedModel, kind: Kind, out: Path | None, *, dynamic_batch: bool, tolerance: float
) -> ExportedRun:
    """Export the trained model of a run, checked on its held-out data.

    Args:
        source: the trained model in any mode, which is restored.
        kind: format of the exported model.
        out: folder that does not exist or is empty; None = RUN/export/KIND, with a number appended if that exists.
        dynamic_batch: True to allow any number of samples per batch, False to allow only one sample.
        tolerance: see `Parity.tolerance`.

    Raises:
        InvalidModel: the model cannot be exported, or the exported model's outputs differ.
        RunFolderError: the folder is not empty, or cannot be written.
    """
    model = source.parts.model
    folder = _choose_folder(source.weights.run, kind, out)
    with eval_mode(model), preserve_generators():
        names, batches, outputs = capture_samples(source.parts)
        spec = ExportSpec(
            kind=kind,
            names=names,
            batches=batches,
            dynamic_batch=dynamic_batch,
            tolerance=tolerance,
            reading=source.parts.reading,
            answer=infer_answer(source.parts, outputs),
        )
        staging = folder.with_name(f"{TEMPORARY_PREFIX}{folder.name}-{secrets.token_hex(4)}")
        try:
            staging.mkdir(parents=True)
            exported = export(model, spec, staging, _describe_source(source))
            for item in (*staging.iterdir(), staging):
                sync(item)
            if folder.exists():
                folder.rmdir()  # it is empty
            staging.rename(folder)
            sync(folder.parent)
        except OSError as error:
            raise RunFolderError(
                f"{str(folder)!r} cannot be written: {error.strerror or error}.", fix="Choose another folder (--out)."
            ) from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    open_artifact(folder, expected=exported.digest)
    notes = (*source.notes, *exported.notes)
    return ExportedRun(folder=folder, exported=exported, weights=source.weights.source, notes=notes)


def _choose_folder(run: Path, kind: Kind, out: Path | None) -> Path:
    if out is None:
        return next(path for path in numbered_names(run / "export" / kind) if not path.exists())
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise RunFolderError(
            f"{str(out)!r} already exists.", fix="Choose an empty folder, or one that does not exist (--out)."
        )
    return out


def capture_samples(parts: Parts) -> tuple[tuple[str, ...], list[Inputs], list[Tensor]]:
    """Return the inputs that the objective passes to the model on held-out samples, and the model's outputs.

    Args:
        parts: parts of a recipe, with the model in eval mode.

    Returns:
        The names of the inputs, the inputs of each batch, and each batch's first output.

    Raises:
        InvalidData: the recipe has no sample.
        InvalidModel: the objective never calls the model, or passes other values than tensors.
    """
    import torch

    objective, model = as_objective(parts.objective), parts.model
    calls: list[tuple[dict[str, Tensor], Any]] = []

    def record(module: nn.Module, args: Any, options: Any, output: Any) -> None:
        calls.append((bind_tensors(module, args, options), output))

    first_calls: list[tuple[dict[str, Tensor], Any]] = []
    handle = model.register_forward_hook(record, with_kwargs=True)
    try:
        with torch.no_grad():
            for batch in sample_batches(parts):
                calls.clear()
                objective(model, batch)
                # the objective may call the model again, such as for a penalty; only the first call is exported
                first_calls += calls[:1]
    finally:
        handle.remove()
    if not first_calls:
        raise InvalidModel("The objective never calls the model itself.", fix="Call model(...) in it, not a submodule.")
    names = tuple(first_calls[0][0])
    inputs = [tuple(arguments[name].detach().clone() for name in names) for arguments, _ in first_calls]
    return names, inputs, [next(iter(name_outputs(output).values())) for _, output in first_calls]


def sample_batches(parts: Parts) -> list[Any]:
    """Return batches of real samples from the test, validation or training data; ready-made batches are used unchanged.

    Raises:
        InvalidData: there is no sample.
    """
    from trueloop.data import collate

    data: Any = next((each for each in (parts.test, parts.val, parts.train) if each is not None), ())
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, list):
        collate_batch = parts.collate or collate
        collated: list[Any] = []
        start = 0
        for size in BATCH_SIZES:
            samples: list[Any] = [data[index] for index in range(start, min(start + size, len(data)))]
            start += size
            if samples:
                collated.append(collate_batch(samples))
    else:
        collated = list(itertools.islice(data, 4))
    if not collated:
        raise InvalidData("The recipe has no sample to check the export on.", fix="Add test, val or train data to it.")
    return collated


def infer_answer(parts: Parts, outputs: Sequence[Tensor]) -> Answer:
    """Infer the meaning of the first output from the class names, the input format and the shape."""
    from torch import nn

    first = outputs[0]
    labels = tuple(parts.class_names)
    if labels and first.dim() == 2 and first.shape[1] == len(labels):
        needs_softmax = isinstance(parts.objective, nn.CrossEntropyLoss | nn.NLLLoss)
        return Answer(kind="class", labels=labels, softmax=needs_softmax)
    if parts.reading.kind == "text" and first.dim() == 3 and first.shape[2] == 256:
        return Answer(kind="next_byte")
    if first.is_floating_point() and (first.dim() == 1 or (first.dim() == 2 and first.shape[1] == 1)):
        return Answer(kind="value")
    return Answer()


def _describe_source(source: TrainedModel) -> Mapping[str, Any]:
    import torch

    weights, recipe, model = source.weights, source.recipe, source.parts.model
    model_facts = {"class": type(model).__name__, "parameters": sum(each.numel() for each in model.parameters())}
    run_facts = {
        "name": weights.run.resolve().name,
        "id": source.run_id,
        "weights": weights.source,
        "update": weights.update,
        "metrics": dict(weights.metrics),
        "recipe": recipe.name,
        "summary": recipe.summary,
    }
    versions = {"trueloop": __version__, "torch": str(torch.__version__), "python": platform.python_version()}
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    remarks = list(source.notes)
    return {"run": run_facts, "model": model_facts, "versions": versions, "exported": now, "remarks": remarks}


def describe_input_files(reading: Reading) -> str:
    """Describe the files that `trueloop predict` reads."""
    extensions = {
        "image": ".png, .jpg, .npy, .json",
        "table": ".csv, .npy, .json",
        "text": ".txt, .npy, .json",
        "array": ".npy, .json",
    }
    return f"{extensions[reading.kind]}: {reading.description}"
