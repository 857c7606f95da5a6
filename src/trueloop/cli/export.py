"""`trueloop export`: write a trained model as a file that runs without its source code."""

import json as json_format
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from trueloop.app.option_types import Flag
from trueloop.export.io_description import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """Options of the export."""

    dynamic_batch: Annotated[bool, Parameter(negative="--no-dynamic-batch")] = True
    """Accept any number of samples per batch, not only one."""
    tolerance: float = 1e-5
    """Largest accepted difference between the outputs, relative to the largest output or to 1."""


def export_command(
    run: str,
    *,
    to: Kind,
    out: Path | None = None,
    options: Annotated[ExportOptions | None, Parameter(name="*")] = None,
    recipe: str = "",
    root: Path = Path("runs"),
    json: Flag = False,
) -> None:
    """Export the model of a run in eval mode, and compare its outputs with those of the original on real samples.

    Args:
        run: Run to export, by path or name, or the folder of a checkpoint.
        to: Format: pt2 (torch.export), onnx (for onnxruntime and others), or torchscript (deprecated by PyTorch).
        out: Folder to write to, which must not exist or be empty; by default RUN/export/FORMAT.
        recipe: Recipe of the run, path/to/recipe.py:build, if the run does not record it.
        root: Folder in which runs are looked up by name.
        json: Print one JSON object and nothing else.
    """
    from trueloop.app.export.export_run import describe_input_files, export_run
    from trueloop.app.export.trained_model import load_trained_model
    from trueloop.export.artifact import MANIFEST

    source = load_trained_model(run, root, recipe=recipe)
    options = options or ExportOptions()
    export = export_run(source, to, out, dynamic_batch=options.dynamic_batch, tolerance=options.tolerance)
    exported, description = export.exported, export.exported.description
    if json:
        facts = {"parity": {**asdict(exported.parity), "allowed": exported.parity.allowed}, "notes": export.notes}
        print(json_format.dumps({"artifact": str(export.folder), "digest": exported.digest, "kind": to, **facts}))
        return
    print(f"artifact  {export.folder}  ({to}, weights: {export.weights}; details in {MANIFEST})")
    print(f"inputs    {', '.join(map(str, description.inputs))}")
    print(f"outputs   {', '.join(map(str, description.outputs))}")
    print(f"reads     {describe_input_files(description.reading)}")
    print(f"parity    {exported.parity}")
    print(f"digest    {exported.digest}")
    for note in export.notes:
        print(f"note      {note}")
    print(f"Next      trueloop predict {export.folder} INPUT   or   trueloop serve {export.folder}")
