"""Encode messages of the lab to its page and workers: strict JSON, and binary frames with a JSON header."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from struct import Struct
from typing import Any, Final, cast

from trueloop.core.errors import InvalidConfig, TrueloopError
from trueloop.core.json_text import parse_json

LENGTH: Final = Struct("<IB")
"""Prefix of every message of a worker: length of the message in bytes, and `TEXT` or `FRAME`."""
TEXT: Final = 0
FRAME: Final = 1
_HEADER: Final = Struct("<I")


def to_json_value(value: Any) -> Any:
    """Convert ``value`` to types that JSON has; non-finite numbers become "nan", "inf" and "-inf"."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): to_json_value(inner) for key, inner in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [to_json_value(inner) for inner in cast("Sequence[Any]", value)]
    return value


def encode_json(value: Any) -> str:
    """Encode ``value`` as strict JSON."""
    return json.dumps(to_json_value(value), allow_nan=False, separators=(",", ":"))


def decode_object(text: str | bytes) -> Mapping[str, Any]:
    """Decode a JSON object.

    Raises:
        InvalidConfig: the text is not a strict JSON object; NaN and Infinity are refused too.
    """
    try:
        value = parse_json(text, allow_nan=False)
    except ValueError as error:
        raise InvalidConfig(f"The message is not JSON: {error}.", fix="Send an object of named fields.") from None
    if not isinstance(value, dict):
        raise InvalidConfig("The message is not a JSON object.", fix="Send an object of named fields.")
    return cast("dict[str, Any]", value)


def encode_frame(header: Mapping[str, Any], planes: Iterable[bytes] = ()) -> bytes:
    """Encode a frame: ``u32 header length | JSON header, padded to a multiple of 4 bytes | planes``."""
    text = encode_json(header).encode()
    text += b" " * (-len(text) % 4)
    return b"".join((_HEADER.pack(len(text)), text, *planes))


def decode_frame(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Decode a frame into its header and the bytes of all planes."""
    (length,) = _HEADER.unpack_from(data)
    start = _HEADER.size
    return json.loads(data[start : start + length]), data[start + length :]


def error_body(error: TrueloopError) -> dict[str, str]:
    """Return the JSON body of a refused request."""
    return {"what": error.what, "why": error.why, "fix": error.fix}
