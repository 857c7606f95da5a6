"""What lies where a user pointed: nothing, where nobody may look or no path can be so long.

Before Python 3.14 `Path.exists` and its like raise there.
"""

from __future__ import annotations

import os
from pathlib import Path


def path_exists(path: Path) -> bool:
    """True for whatever a path leads to; of a link, its end."""
    return os.path.exists(path)  # noqa: PTH110 - raises nothing


def is_file(path: Path) -> bool:
    """True for a file, or a link to one."""
    return os.path.isfile(path)  # noqa: PTH113 - raises nothing


def is_folder(path: Path) -> bool:
    """True for a folder, or a link to one."""
    return os.path.isdir(path)  # noqa: PTH112 - raises nothing
