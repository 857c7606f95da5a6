"""Write and read a JSON object that contains its own checksum; a changed file is rejected."""

import hashlib
import json
from typing import Any, cast


def seal(content: dict[str, Any]) -> bytes:
    """Return the JSON text of an object including its checksum."""
    checksum = hashlib.sha256(json.dumps(content).encode()).hexdigest()
    return json.dumps({**content, "sha256": checksum}, indent=1).encode()


def unseal(text: bytes) -> dict[str, Any] | None:
    """Return the object without its checksum; None if `seal` would not return exactly these bytes."""
    try:
        content = json.loads(text)
        del content["sha256"]
        valid = seal(content) == text
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return cast("dict[str, Any]", content) if valid else None
