"""What is journaled of a run beside its numbers: settings, sizes, versions, and which code it was."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Mapping
from typing import Any

import torch

from trueloop.engines.train.loop import Assembly
from trueloop.version import __version__


def describe_run(parts: Assembly, config: Mapping[str, Any], code: Mapping[str, str]) -> dict[str, Any]:
    """Describe an assembled run, JSON-ready.

    Args:
        parts: what the loop turns.
        config: the settings, as nested mappings.
        code: fingerprint of each of the user's files.
    """
    trainable = sum(p.numel() for p in parts.model.parameters() if p.requires_grad)
    return {
        "config": config,
        "parameters": trainable,
        "parameters_frozen": sum(p.numel() for p in parts.model.parameters()) - trainable,
        "device": str(parts.device),
        "optimizer": type(parts.optimizer).__name__,
        "threads": torch.get_num_threads(),
        "code": dict(code),
        "git": git_version(),
        "versions": {"trueloop": __version__, "torch": str(torch.__version__), "python": platform.python_version()},
    }


def git_version() -> str | None:
    """Return the commit of the working folder, with "+" where it has changes; None outside a repository."""
    commit = _git("rev-parse", "--short=12", "HEAD")
    return commit and (commit + "+" if _git("status", "--porcelain", "--untracked-files=no") else commit)


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=5, check=True)  # noqa: S603, S607 - git, with arguments of our own
    except (OSError, subprocess.SubprocessError):  # no git here, or no repository: there is nothing to name
        return None
    return done.stdout.strip()
