"""`trueloop predict`: predict on files with an exported model."""

import json as json_format
import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from trueloop.app.option_types import Flag
from trueloop.core.errors import InvalidConfig


def predict_command(
    artifact: Path,
    *inputs: Annotated[str, Parameter(allow_leading_hyphen=True)],
    raw: Flag = False,
    digest: str = "",
    json: Flag = False,
) -> None:
    """Predict on files with an exported model, after verifying its checksums.

    Args:
        artifact: Folder that `trueloop export` wrote.
        inputs: Files in the format of the model: .csv for tables, .png for pictures, .txt for texts, or .npy and .json
            for any model; - reads JSON from standard input.
        raw: Print the raw model outputs as well.
        digest: Refuse an artifact with another digest: the one that its export printed, or its first 12 digits.
        json: Print one JSON object and nothing else.
    """
    if not inputs:
        raise InvalidConfig("The input files are missing.", fix="Pass files: trueloop predict ARTIFACT INPUT...")
    from trueloop.export.exported_model import Model, interpret_outputs
    from trueloop.export.input_files import parse_json_samples, read_samples

    model = Model.open(artifact, expected=digest)
    description = model.description
    predictions: list[dict[str, Any]] = []
    for name in inputs:
        if name == "-":
            samples = parse_json_samples(description, sys.stdin.buffer.read())
        else:
            samples = read_samples(description, Path(name))
        outputs = model.run(samples)
        answers = [interpret_outputs(description, each, raw=raw) for each in outputs]
        predictions += [{"input": name, "sample": index, **each} for index, each in enumerate(answers)]
    if json:
        record = {"artifact": str(model.artifact.folder), "digest": model.artifact.digest, "answers": predictions}
        print(json_format.dumps(record))
        return
    for each in predictions:
        label = f"{each.pop('input')}[{each.pop('sample')}]"
        print(f"{label}  {'  '.join(f'{name} {_format_value(value)}' for name, value in each.items())}")


def _format_value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return json_format.dumps(value) if isinstance(value, dict | list) else str(value)
