"""A JSON object that carries the checksum of itself: no other bytes are accepted for it."""

from __future__ import annotations

import hashlib
import json
from typing import Any, cast


def seal(content: dict[str, Any]) -> bytes:
    """Return the one text that says this, with the checksum of itself."""
    checksum = hashlib.sha256(json.dumps(content).encode()).hexdigest()
    return json.dumps({**content, "sha256": checksum}, indent=1).encode()


def unseal(text: bytes) -> dict[str, Any] | None:
    """Return what was sealed, without the checksum; None where these are not the bytes that `seal` gave."""
    try:
        content = json.loads(text)
        del content["sha256"]
        sound = seal(content) == text
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return cast("dict[str, Any]", content) if sound else None
