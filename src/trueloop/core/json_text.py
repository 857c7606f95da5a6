"""JSON that somebody else may have written: what cannot be read is a `ValueError`, whatever is the matter with it."""

from __future__ import annotations

import json
from typing import Any, NoReturn


def parse_json(text: str | bytes) -> Any:
    """Return what a text says; NaN and Infinity, which Python writes, too.

    Raises:
        ValueError: it is no JSON, or nested more deeply than Python reads.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parse_strict_json(text: str | bytes) -> Any:
    """Return what a text says that has no NaN and no Infinity, as every other program writes JSON.

    Raises:
        ValueError: it is no JSON, or nested more deeply than Python reads.
    """
    try:
        return json.loads(text, parse_constant=_reject_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")
