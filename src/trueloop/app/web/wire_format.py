"""How the lab writes things down for its page and its workers: strict JSON, and frames of bytes behind a header."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from struct import Struct
from typing import Any, Final, cast

from trueloop.core.errors import InvalidConfig
from trueloop.core.json_text import parse_strict_json

LENGTH: Final = Struct("<IB")
"""Before everything a worker sends: its length in bytes, and whether it is `TEXT` or a `FRAME`."""
TEXT: Final = 0
FRAME: Final = 1
_HEADER: Final = Struct("<I")


def plain(value: Any) -> Any:
    """Return ``value`` in what JSON knows; numbers that are not finite as "nan", "inf" and "-inf"."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(inner) for inner in cast("Sequence[Any]", value)]
    return value


def written(value: Any) -> str:
    """Write ``value`` as JSON that every browser reads."""
    return json.dumps(plain(value), allow_nan=False, separators=(",", ":"))


def parsed(text: str | bytes) -> Mapping[str, Any]:
    """Read a JSON object.

    Raises:
        InvalidConfig: it is none; NaN and Infinity, which JSON does not have, included.
    """
    try:
        value = parse_strict_json(text)
    except ValueError as error:
        raise InvalidConfig(f"This is not JSON: {error}.", fix="Send an object of named fields.") from None
    if not isinstance(value, dict):
        raise InvalidConfig("This is not a JSON object.", fix="Send an object of named fields.")
    return cast("dict[str, Any]", value)


def frame(header: Mapping[str, Any], planes: Iterable[bytes] = ()) -> bytes:
    """Put planes of bytes behind their header: ``u32 length | JSON padded to 4 | planes``."""
    text = written(header).encode()
    text += b" " * (-len(text) % 4)
    return b"".join((_HEADER.pack(len(text)), text, *planes))


def opened(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Take a frame apart again: its header, and all planes in one."""
    (length,) = _HEADER.unpack_from(data)
    start = _HEADER.size
    return json.loads(data[start : start + length]), data[start + length :]


def refusal(error: InvalidConfig) -> dict[str, str]:
    """Return what the page shows of a request that cannot be met."""
    return {"what": error.what, "why": error.why, "fix": error.fix}
