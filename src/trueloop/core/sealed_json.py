"""Write and read a JSON object that contains its own checksum: any other bytes are rejected."""

import hashlib
import json
from typing import Any, cast


def seal(content: dict[str, Any]) -> bytes:
    """Return the canonical JSON text of an object, with its own checksum in it."""
    checksum = hashlib.sha256(json.dumps(content).encode()).hexdigest()
    return json.dumps({**content, "sha256": checksum}, indent=1).encode()


def unseal(text: bytes) -> dict[str, Any] | None:
    """Return the object without its checksum; None where the bytes are not what `seal` returns."""
    try:
        content = json.loads(text)
        del content["sha256"]
        sound = seal(content) == text
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return cast("dict[str, Any]", content) if sound else None
