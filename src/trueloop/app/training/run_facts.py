"""Collect the facts of a run for its journal: settings, sizes, versions, machine and code."""

import hashlib
import inspect
import os
import platform
import subprocess
from collections.abc import Callable, Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Final

import torch

from trueloop.training.distributed.launcher_env import read_launch_info
from trueloop.training.loop import Assembly
from trueloop.version import __version__

MAX_SOURCE_CHARS: Final = 200_000  # larger recipe files are not recorded


def describe_run(assembly: Assembly, config: Mapping[str, Any], code: Mapping[str, str]) -> dict[str, Any]:
    """Return the JSON-ready facts of an assembled run.

    Args:
        assembly: the assembled run.
        config: the settings, as nested mappings.
        code: fingerprints of the user's files by name.
    """
    launch = read_launch_info()
    trainable = sum(p.numel() for p in assembly.model.parameters() if p.requires_grad)
    return {
        "config": config,
        "parameters": trainable,
        "parameters_frozen": sum(p.numel() for p in assembly.model.parameters()) - trainable,
        "device": str(assembly.device),
        "optimizer": type(assembly.optimizer).__name__,
        "threads": torch.get_num_threads(),
        "processes": assembly.parallel.processes.size,
        "restart": launch.restarts if launch else 0,  # restarts by the launcher after a lost process
        "code": dict(code),
        "git": git_state(),
        "environment": _environment(assembly.device),
        "versions": {"trueloop": __version__, "torch": str(torch.__version__), "python": platform.python_version()},
        "packages": _packages(),
    }


def git_state() -> dict[str, Any] | None:
    """Return the commit of the working directory and a hash of its changes; None outside a repository.

    Returns:
        "commit", "dirty", and "diff_sha256", the hash of the output of ``git diff HEAD``, or None without changes.
        Untracked files are not included.
    """
    commit, changes = _git("rev-parse", "HEAD"), _git("diff", "HEAD", "--binary", "--no-ext-diff", "--no-color")
    if commit is None:
        return None
    digest = hashlib.sha256(changes).hexdigest() if changes else None
    return {"commit": commit.decode().strip(), "dirty": bool(changes), "diff_sha256": digest}


def read_source_file(function: Callable[..., Any]) -> dict[str, str]:
    """Return the source code of a function's file by file name; empty if the file cannot be read or is too large."""
    try:
        path = Path(inspect.getsourcefile(inspect.unwrap(function)) or "")
        text = path.read_text(encoding="utf-8")
    except (OSError, TypeError, ValueError):
        return {}
    return {path.name: text} if len(text) <= MAX_SOURCE_CHARS else {}


def _git(*arguments: str) -> bytes | None:
    try:
        result = subprocess.run(["git", *arguments], capture_output=True, timeout=5, check=True)  # noqa: S603, S607 - git, with constant arguments
    except (OSError, subprocess.SubprocessError):  # no git, or no repository
        return None
    return result.stdout


def _environment(device: torch.device) -> dict[str, Any]:
    cuda = device.type == "cuda"
    return {
        "host": platform.node(),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "device_name": torch.cuda.get_device_name(device) if cuda else None,
        "cuda": torch.version.cuda if cuda else None,
        "cudnn": torch.backends.cudnn.version() if cuda else None,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    model_names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(model_names, platform.machine())


def _packages() -> dict[str, str]:
    """Return the versions of all installed packages; of several copies of a package, that of the imported copy."""
    versions: dict[str, str] = {}
    for each in distributions():
        name = each.metadata["Name"]
        if name:  # a partially removed package has no name
            versions.setdefault(name.lower(), each.version)
    return dict(sorted(versions.items()))
