"""Parse untrusted JSON: everything that cannot be parsed raises `ValueError`."""

import json
from typing import Any, NoReturn


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; accept NaN and Infinity, which Python writes.

    Raises:
        ValueError: the text is not JSON, or is nested more deeply than Python can parse.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parse_strict_json(text: str | bytes) -> Any:
    """Parse JSON; reject NaN and Infinity, which the standard does not allow.

    Raises:
        ValueError: the text is not JSON, or is nested more deeply than Python can parse.
    """
    try:
        return json.loads(text, parse_constant=_reject_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
