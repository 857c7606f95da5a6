"""`trueloop predict`: an exported model answers files."""

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
    """Answer files with an exported model, once its checksums have been verified.

    Args:
        artifact: A folder that `trueloop export` made.
        inputs: Files, as the model reads them: .csv for tables, .png for pictures, .txt for texts; .npy and .json
            always; - reads JSON from standard input.
        raw: Give the model's own numbers as well.
        digest: Refuse any other artifact: the digest that its export printed, or 12 digits of it.
        json: Print one JSON object and nothing else.
    """
    if not inputs:
        raise InvalidConfig("There is nothing to answer.", fix="Name files: trueloop predict ARTIFACT INPUT...")
    from trueloop.export.exported_model import Model, interpret_outputs
    from trueloop.export.input_files import parse_json_samples, read_samples

    model = Model.open(artifact, expected=digest)
    description = model.description
    found: list[dict[str, Any]] = []
    for word in inputs:
        if word == "-":
            samples = parse_json_samples(description, sys.stdin.buffer.read())
        else:
            samples = read_samples(description, Path(word))
        outputs = model.run(samples)
        answers = [interpret_outputs(description, each, raw=raw) for each in outputs]
        found += [{"input": word, "sample": place, **each} for place, each in enumerate(answers)]
    if json:
        print(
            json_format.dumps(
                {"artifact": str(model.artifact.folder), "digest": model.artifact.digest, "answers": found}
            )
        )
        return
    for each in found:
        place = f"{each.pop('input')}[{each.pop('sample')}]"
        print(f"{place}  {'  '.join(f'{name} {_format_value(value)}' for name, value in each.items())}")


def _format_value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return json_format.dumps(value) if isinstance(value, dict | list) else str(value)
