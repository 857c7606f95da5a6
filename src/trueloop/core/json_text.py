"""Parse untrusted JSON: everything that cannot be parsed raises `ValueError`."""

import json
from typing import Any, NoReturn, cast


def parse_json(text: str | bytes, *, allow_nan: bool = True) -> Any:
    """Parse JSON.

    Args:
        text: the JSON.
        allow_nan: accept NaN and Infinity, which Python writes although the JSON standard forbids them.

    Raises:
        ValueError: the text is not JSON, or is nested more deeply than Python can parse.
    """
    try:
        return json.loads(text, parse_constant=None if allow_nan else _reject_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parse_json_object(text: str | bytes) -> dict[str, Any]:
    """Parse a JSON object; return {} if the text is anything else."""
    try:
        value: Any = parse_json(text)
    except ValueError:
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
