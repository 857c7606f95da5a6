"""Reads what there is to know of the machine; the only place of the doctor that looks anywhere."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Final

from trueloop.doctor import cgroup
from trueloop.doctor.machine import Folder, Machine, Package, Space
from trueloop.doctor.mounts import kind_of
from trueloop.doctor.torch_facts import read_torch

FITTING: Final = ("torchvision", "torchaudio")
"""Packages with compiled code that fits one version of torch only."""
PATIENCE_S: Final = 60.0  # to import one of them, on a slow network disk
_DRIVER: Final = re.compile(r"Kernel Module.*?\s(\d{3,}(?:\.\d+)+)\s")
_MAKERS: Final = {"0x10de": "NVIDIA", "0x1002": "AMD"}
_DISPLAYS: Final = ("0x0300", "0x0302", "0x0380", "0x1200")  # VGA, 3D, other display; processing accelerators


def read_machine(
    folder: Path, *, root: Path = Path("/"), environment: Mapping[str, str] = os.environ, deep: bool = False
) -> Machine:
    """Read everything that checks need.

    Args:
        folder: where runs are to lie; it need not exist.
        root: where /proc, /sys and /dev are.
        environment: variables by name.
        deep: look also where that takes long: how much memory is free on each GPU, which packages have to fit torch,
            and whether they can be imported, which is tried in a process of its own.

    Cost: about 2 ms once torch is imported; some seconds if ``deep``.
    """
    seen, problem = read_torch(deep=deep)
    packages = dict(_packages()) if deep else {}
    if seen is not None:
        packages = {name: replace(each, problem=_import_problem(name)) for name, each in packages.items()}
    total, available = _memory(root)
    return Machine(
        python=sys.version_info[:3],
        system=platform.system(),
        torch=seen,
        torch_problem=problem,
        packages=packages,
        environment=environment,
        driver=_driver(root),
        device_files=_device_files(root),
        on_bus=tuple(sorted(_on_bus(root))),
        cores=_cores(),
        quota=cgroup.cores_quota(root),
        memory_bytes=total,
        available_bytes=available,
        memory_limit_bytes=cgroup.memory_limit(root),
        shared=_space(root / "dev/shm"),
        open_files=_open_files(),
        processes_left=cgroup.processes_left(root),
        folder=read_folder(folder, root),
        container=_container(root, environment),
        output_buffered=_waits(sys.stdout),
    )


def read_folder(folder: Path, root: Path = Path("/")) -> Folder:
    """Read what is known of a folder, or of the nearest one above it that there is."""
    path = folder.absolute()
    there = next((each for each in (path, *path.parents) if each.is_dir()), path)
    space, left = _space(there), None
    if hasattr(os, "statvfs") and space is not None:
        files = os.statvfs(there)
        left = files.f_favail if files.f_files else None  # btrfs and others count none
    mounts = cgroup.read_text(root / "proc/self/mountinfo")
    writable = os.access(there, os.W_OK | os.X_OK)
    return Folder(path=str(there), space=space, files_left=left, writable=writable, kind=kind_of(there, mounts))


def _packages() -> Iterator[tuple[str, Package]]:
    for name in FITTING:
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue
        wanted = (re.match(r"torch\s*\(?==\s*([\w.+]+)", line) for line in found.requires or ())
        yield name, Package(version=found.version, required_torch=next((m[1] for m in wanted if m), ""))


def _import_problem(name: str) -> str:
    """Return the last line of what Python says when it imports a package; "" where it can."""
    command = [sys.executable, "-W", "ignore", "-c", f"import {name}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)  # noqa: S603 - a fixed list of names
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = done.stderr.strip().splitlines()
    return (lines[-1] if lines else f"exit code {done.returncode}") if done.returncode else ""


def _driver(root: Path) -> str:
    found = _DRIVER.search(cgroup.read_text(root / "proc/driver/nvidia/version"))
    return found[1] if found else ""


def _device_files(root: Path) -> tuple[str, ...]:
    try:
        names = sorted(each.name for each in (root / "dev").iterdir())
    except OSError:
        return ()
    return tuple(f"/dev/{name}" for name in names if re.fullmatch(r"nvidia\d+|kfd|dxg", name))


def _on_bus(root: Path) -> Iterator[str]:
    try:
        devices = list((root / "sys/bus/pci/devices").iterdir())
    except OSError:
        return
    for device in devices:
        maker = _MAKERS.get(cgroup.read_text(device / "vendor"))
        if maker and cgroup.read_text(device / "class").startswith(_DISPLAYS):
            yield maker


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memory(root: Path) -> tuple[int | None, int | None]:
    """Return the machine's memory, and what can still be taken of it and of the group's limit."""
    pairs = (line.split(":", 1) for line in cgroup.read_text(root / "proc/meminfo").splitlines() if ":" in line)
    sizes = {
        name: int(text.split()[0]) * 1024 for name, text in pairs if text.split()[:1] and text.split()[0].isdecimal()
    }
    left = (sizes.get("MemAvailable"), cgroup.memory_left(root))
    return sizes.get("MemTotal"), min((each for each in left if each is not None), default=None)


def _space(path: Path) -> Space | None:
    if not hasattr(os, "statvfs"):
        return None
    try:
        seen = os.statvfs(path)
    except OSError:
        return None
    return Space(total_bytes=seen.f_frsize * seen.f_blocks, free_bytes=seen.f_frsize * seen.f_bavail)


def _open_files() -> tuple[int, int] | None:
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft, hard


def _container(root: Path, environment: Mapping[str, str]) -> str:
    if "KUBERNETES_SERVICE_HOST" in environment:
        return "kubernetes"
    if (root / "run/.containerenv").exists():
        return "podman"
    if (root / ".dockerenv").exists():
        return "docker"
    named = environment.get("container") or next(
        iter(re.findall(r"docker|kubepods|containerd|lxc", cgroup.names(root))), ""
    )
    return named and ("kubernetes" if named == "kubepods" else named)


def _waits(stream: Any) -> bool:
    """Return True where what is printed is kept back until a block is full."""
    return not (getattr(stream, "line_buffering", True) or getattr(stream, "write_through", False))
