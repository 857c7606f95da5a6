"""What an old code base had when it began to be looked at: those findings are not told again.

A finding is known by its file, its code and the words of its line, so that it stays known while lines move; a line that
is changed is new. The file is JSON, sorted, one finding per line, to be committed and to shrink.
"""

from __future__ import annotations

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
"""File, code, words of the line."""


def baseline_key(finding: Finding, line: str, base: Path) -> Key:
    """Return what a finding is known by.

    Args:
        finding: in a text.
        line: the words it stands in.
        base: paths are told relative to it.
    """
    path = Path(finding.location.path) if finding.location else Path("?")
    known = path.resolve()
    named = known.relative_to(base.resolve()) if known.is_relative_to(base.resolve()) else known
    return named.as_posix(), finding.code, " ".join(line.split())


def write_baseline(path: Path, keys: Iterable[Key]) -> int:
    """Write a baseline; return how many findings it holds.

    Raises:
        InvalidConfig: it cannot be written there.
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
    """Return how often each finding of a baseline is known.

    Raises:
        InvalidConfig: it is not there, or is no baseline.
    """
    try:
        content: Any = parse_json(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or cast("Mapping[str, Any]", content).get("schema") != SCHEMA:
            raise ValueError(f"its schema is not {SCHEMA}")
        rows = cast("Mapping[str, Any]", content)["findings"]
        return Counter((str(file), str(code), str(words)) for file, code, words in rows)
    except OSError as error:
        raise InvalidConfig(
            f"There is no baseline {str(path)!r}: {error.strerror}.", fix="Write one: --write-baseline PATH."
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidConfig(
            f"{str(path)!r} is no baseline: {error}.", fix="Write it anew: --write-baseline PATH."
        ) from error
