"""Test a user's paths without raising: an unreadable or overlong path counts as absent.

Before Python 3.14 `Path.exists`, `is_file` and `is_dir` raise for such paths.
"""

import os
from pathlib import Path


def path_exists(path: Path) -> bool:
    """Return True if anything exists at a path; links are followed."""
    return os.path.exists(path)  # noqa: PTH110 - raises nothing


def is_file(path: Path) -> bool:
    """Return True for a file, or a link to a file."""
    return os.path.isfile(path)  # noqa: PTH113 - raises nothing


def is_folder(path: Path) -> bool:
    """Return True for a folder, or a link to a folder."""
    return os.path.isdir(path)  # noqa: PTH112 - raises nothing
