"""`trueloop export`: a trained model as a file that runs without the code it was made by."""

import json as json_format
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from trueloop.app.option_types import Flag
from trueloop.export.io_description import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """How it is to be exported."""

    dynamic_batch: Annotated[bool, Parameter(negative="--no-dynamic-batch")] = True
    """Take any number of samples at once, not just one."""
    tolerance: float = 1e-5
    """Largest difference that passes, relative to the largest output or to 1."""


def export_command(
    run: str,
    *,
    to: Kind,
    out: Path | None = None,
    wishes: Annotated[ExportOptions | None, Parameter(name="*")] = None,
    recipe: str = "",
    root: Path = Path("runs"),
    json: Flag = False,
) -> None:
    """Export a run's model, in eval mode, and prove on real samples that its answers are those of the live one.

    Args:
        run: A run, by path or name, or the folder of a checkpoint.
        to: pt2 (torch.export), onnx (for onnxruntime and others), or torchscript (which torch itself has deprecated).
        out: An absent or empty folder; by default RUN/export/FORMAT.
        recipe: Where the run does not say: path/to/recipe.py:build.
        root: Where runs lie that are named without a path.
        json: Print one JSON object and nothing else.
    """
    from trueloop.app.export.export_run import describe_input_files, export_run
    from trueloop.app.export.trained_model import load_trained_model
    from trueloop.export.artifact import MANIFEST

    source = load_trained_model(run, root, recipe=recipe)
    how = wishes or ExportOptions()
    made = export_run(source, to, out, dynamic_batch=how.dynamic_batch, tolerance=how.tolerance)
    exported, description = made.exported, made.exported.description
    if json:
        facts = {"parity": {**asdict(exported.parity), "allowed": exported.parity.allowed}, "notes": made.notes}
        print(json_format.dumps({"artifact": str(made.folder), "digest": exported.digest, "kind": to, **facts}))
        return
    print(f"artifact  {made.folder}  ({to}, weights: {made.weights}; {MANIFEST} holds the rest)")
    print(f"inputs    {', '.join(map(str, description.inputs))}")
    print(f"outputs   {', '.join(map(str, description.outputs))}")
    print(f"reads     {describe_input_files(description.reading)}")
    print(f"parity    {exported.parity}")
    print(f"digest    {exported.digest}")
    for note in made.notes:
        print(f"note      {note}")
    print(f"Next      trueloop predict {made.folder} INPUT   or   trueloop serve {made.folder}")
