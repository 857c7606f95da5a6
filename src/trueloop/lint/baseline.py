"""Reads and writes a baseline: the findings of a code base when it adopts the linter, which are not reported again.

A finding is identified by its file, its code and the text of its line: it stays known when its line moves, and is
reported when its line changes. The file is sorted JSON with one finding per line, suitable for version control.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, cast

from trueloop.core.errors import InvalidConfig
from trueloop.core.findings import Finding
from trueloop.core.json_text import parse_json

SCHEMA: Final = 1
Key = tuple[str, str, str]
"""File of a finding, its code and the text of its line."""


def baseline_key(finding: Finding, line: str, base: Path) -> Key:
    """Return the key of a finding in the baseline.

    Args:
        finding: a finding of the linter.
        line: text of its line.
        base: folder that the path in the key is relative to.
    """
    path = Path(finding.location.path) if finding.location else Path("?")
    absolute = path.resolve()
    relative = absolute.relative_to(base.resolve()) if absolute.is_relative_to(base.resolve()) else absolute
    return relative.as_posix(), finding.code, " ".join(line.split())


def write_baseline(path: Path, keys: Iterable[Key]) -> int:
    """Write a baseline and return the number of findings in it.

    Raises:
        InvalidConfig: the file cannot be written.
    """
    rows = sorted(keys)
    lines = ",\n".join(f"    {json.dumps(list(row), ensure_ascii=False)}" for row in rows)
    body = f"[\n{lines}\n  ]" if rows else "[]"
    try:
        path.write_text(f'{{\n  "schema": {SCHEMA},\n  "findings": {body}\n}}\n', encoding="utf-8")
    except OSError as error:
        raise InvalidConfig(f"The baseline cannot be written to {str(path)!r}: {error.strerror}.") from error
    return len(rows)


def load_baseline(path: Path) -> Counter[Key]:
    """Return the number of occurrences of each finding in a baseline.

    Raises:
        InvalidConfig: the file does not exist, or is not a baseline.
    """
    try:
        content: Any = parse_json(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or cast("Mapping[str, Any]", content).get("schema") != SCHEMA:
            raise ValueError(f"its schema is not {SCHEMA}")
        rows = cast("Mapping[str, Any]", content)["findings"]
        return Counter((str(file), str(code), str(line)) for file, code, line in rows)
    except OSError as error:
        raise InvalidConfig(
            f"There is no baseline {str(path)!r}: {error.strerror}.", fix="Write one: --write-baseline PATH."
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidConfig(
            f"{str(path)!r} is not a baseline: {error}.", fix="Write it again: --write-baseline PATH."
        ) from error
