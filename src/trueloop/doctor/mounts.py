"""On which kind of file system a path lies."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_OCTAL: Final = re.compile(r"\\([0-7]{3})")  # a space is written \040


def kind_of(path: Path, mountinfo: str) -> str:
    """Return the kind of file system a path lies on: "ext4", "overlay", "tmpfs"; "" where it is not told.

    Args:
        path: absolute.
        mountinfo: the text of /proc/self/mountinfo.

    Source: proc(5): the mount point is the fifth word, the kind the first one after a lone hyphen.
    """
    best, kind = -1, ""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        words = before.split()
        if len(words) < 5 or not after:
            continue
        point = Path(_OCTAL.sub(lambda found: chr(int(found[1], 8)), words[4]))
        if path.is_relative_to(point) and len(point.parts) >= best:  # of two on one place, the later one counts
            best, kind = len(point.parts), after.split()[0]
    return kind
