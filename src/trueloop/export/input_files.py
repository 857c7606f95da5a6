"""Read samples from .npy, .json, .csv, .txt and image files, with the same preprocessing as in training."""

import csv
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from trueloop.core.errors import InvalidConfig, InvalidData, MissingExtra
from trueloop.core.json_text import parse_json
from trueloop.export.artifact import Description
from trueloop.export.request_samples import (
    Numbers,
    Sample,
    parse_request,
    require_single_input,
    row_sample,
    split_samples,
    text_sample,
)

IMAGE_SUFFIXES: Final = (".png", ".jpg", ".jpeg", ".bmp")
SUFFIXES: Final[Mapping[str, tuple[str, ...]]] = {
    "array": (".npy", ".json"),
    "image": (*IMAGE_SUFFIXES, ".npy", ".json"),
    "table": (".csv", ".npy", ".json"),
    "text": (".txt", ".npy", ".json"),
}


def read_samples(description: Description, path: Path) -> list[Sample]:
    """Read the samples in a file; nothing is unpickled.

    Args:
        description: description of the model.
        path: path of the file; its suffix determines the format.

    Raises:
        InvalidConfig: the model does not take this kind of file.
        InvalidData: the file cannot be read, or its content does not fit the model.
        MissingExtra: Pillow, which reads images, is not installed.
    """
    allowed, suffix = SUFFIXES[description.reading.kind], path.suffix.lower()
    if suffix not in allowed:
        raise InvalidConfig(
            f"{path} is not a kind of file that this model takes.",
            fix=f"It takes {', '.join(allowed)}: {description.reading.description}",
        )
    readers: dict[str, Callable[[Description, Path], list[Sample]]] = {
        ".npy": _read_npy,
        ".json": lambda description, path: parse_json_samples(description, path.read_bytes()),
        ".csv": _read_csv,
        ".txt": _read_txt,
    }
    try:
        return readers.get(suffix, _read_image)(description, path)
    except OSError as error:
        raise InvalidData(f"{path} cannot be read: {error.strerror or error}.") from error
    except InvalidData as error:
        raise InvalidData(f"{path}: {error.what}", why=error.why, fix=error.fix) from error


def parse_json_samples(description: Description, text: str | bytes) -> list[Sample]:
    """Parse samples from JSON: an object for `parse_request`, or only its "inputs".

    Raises:
        InvalidData: the text is not JSON, or its content does not fit the model.
        InvalidConfig: a field is unknown.
    """
    try:
        value = parse_json(text, allow_nan=False)
    except ValueError as error:
        raise InvalidData(f"This is not JSON: {error}.", fix='Give {"inputs": [...]}.') from None
    return parse_request(description, cast("dict[str, Any]", value) if isinstance(value, dict) else {"inputs": value})


def _read_npy(description: Description, path: Path) -> list[Sample]:
    try:
        array = np.load(path, allow_pickle=False)
    except (ValueError, TypeError, EOFError, OverflowError, MemoryError) as error:
        raise InvalidData(f"It is not a readable array: {error}", fix="Save numbers with numpy.save.") from None
    require_single_input(description)
    if not isinstance(array, np.ndarray):
        raise InvalidData("It contains several arrays.", fix="Save one array with numpy.save.")
    if not array.nbytes:
        raise InvalidData("It contains no number.", fix="Give one row per sample.")
    return split_samples(description, [array])


def _read_txt(description: Description, path: Path) -> list[Sample]:
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise InvalidData(f"It is not UTF-8: {error}.", fix="Save it as UTF-8.") from None
    return [text_sample(description, text, "The text")]


def _read_csv(description: Description, path: Path) -> list[Sample]:
    """Read rows of numbers; if the first row contains text, it has the names of the columns, in any order."""
    try:
        lines = [row for row in csv.reader(io.StringIO(path.read_bytes().decode("utf-8-sig")), strict=True) if row]
    except (csv.Error, UnicodeDecodeError) as error:
        raise InvalidData(f"It is not valid CSV: {error}.", fix="Separate numbers by commas.") from None
    columns, model_columns = description.reading.columns, set(description.reading.columns)
    has_header = bool(lines) and any(_parse_number(cell) is None for cell in lines[0])
    names = [cell.strip() for cell in lines[0]] if has_header else list(columns)
    if len(set(names)) != len(names):
        raise InvalidData("Two columns have the same name.", fix="Give each column a name of its own.")
    samples: list[Sample] = []
    for number, row in enumerate(lines[has_header:], 1 + has_header):
        if len(row) != len(names):
            raise InvalidData(f"Line {number} has {len(row)} cells.", fix=f"Give it {len(names)} cells.")
        cells = {name: _parse_number(cell) for name, cell in zip(names, row, strict=True)}
        invalid = next((name for name, value in cells.items() if value is None and name in model_columns), None)
        if invalid is not None:
            raise InvalidData(f"Line {number} has no number for {invalid}.", fix="Add the number, or remove the line.")
        samples.append(row_sample(description, cells, f"Line {number}"))
    if not samples:
        raise InvalidData("It contains no row.", fix="Give one row per sample.")
    return samples


def _parse_number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _read_image(description: Description, path: Path) -> list[Sample]:
    try:
        from PIL import Image, UnidentifiedImageError
    except ModuleNotFoundError as error:
        raise MissingExtra("pillow", "demo") from error
    reading, spec = description.reading, require_single_input(description)
    if len(spec.shape) != 4:
        raise InvalidConfig(f"The model takes {spec}, which is not an image.", fix="Give .npy or JSON.")
    _, channels, height, width = spec.shape
    try:
        with Image.open(path) as image:
            if not (width.allows(image.width) and height.allows(image.height)):
                raise InvalidData(
                    "The image has {} by {} pixels.".format(*image.size),
                    fix=f"The model takes {width} by {height}; resize it like the training data.",
                )
            if image.mode not in ("L", "RGB"):
                raise InvalidData(
                    f"The image has mode {image.mode}.", fix="Save it in grayscale (L) or in color (RGB)."
                )
            pixels: Numbers = np.asarray(image.convert(reading.mode), dtype=np.float64) / reading.divide
    except (UnidentifiedImageError, Image.DecompressionBombError, SyntaxError, ValueError) as error:
        raise InvalidData(f"It is not a readable image: {error}.", fix="Give a PNG or JPEG.") from None
    planes = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    if len(planes) != channels.lowest:
        raise InvalidData(f"The image has {len(planes)} channels.", fix=f"The model takes {channels}.")
    return split_samples(description, [planes])
