"""Read the facts of this machine; the only module of the doctor that accesses the system."""

import importlib.util
import os
import platform
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Final

from trueloop.core.cores import available_cores
from trueloop.doctor import cgroup
from trueloop.doctor.machine import Folder, Gpu, Machine, Package, Space, TorchInstall

COMPILED_PACKAGES: Final = ("torchvision", "torchaudio")
"""Packages with binaries that fit only one version of torch."""
IMPORT_TIMEOUT_S: Final = 60.0  # long, because a package may be imported from a slow network disk
_OCTAL: Final = re.compile(r"\\([0-7]{3})")  # mountinfo writes a space as \040
_DRIVER: Final = re.compile(r"Kernel Module.*?\s(\d{3,}(?:\.\d+)+)\s")
_MAKERS: Final = {"0x10de": "NVIDIA", "0x1002": "AMD"}
_GPU_CLASSES: Final = ("0x0300", "0x0302", "0x0380", "0x1200")  # VGA, 3D, other display; processing accelerators


def read_machine(
    folder: Path, *, root: Path = Path("/"), environment: Mapping[str, str] = os.environ, deep: bool = False
) -> Machine:
    """Read everything that checks need.

    Args:
        folder: folder for runs; it need not exist.
        root: folder that contains /proc, /sys and /dev.
        environment: environment variables by name.
        deep: True to read the free memory of each GPU as well, and to try to import each package compiled for torch in
            a separate process.

    Cost: about 2 ms once torch is imported; a few seconds if ``deep``.
    """
    torch, problem = read_torch(deep=deep)
    packages = dict(_installed_packages()) if deep else {}
    if torch is not None:
        packages = {name: replace(package, problem=_import_problem(name)) for name, package in packages.items()}
    total, available = _read_memory(root)
    return Machine(
        python=sys.version_info[:3],
        system=platform.system(),
        torch=torch,
        torch_problem=problem,
        packages=packages,
        environment=environment,
        driver=_read_driver(root),
        device_files=_list_device_files(root),
        gpu_makers_on_bus=tuple(sorted(_gpu_makers_on_bus(root))),
        cores=available_cores(),
        quota=cgroup.cores_quota(root),
        memory_bytes=total,
        available_bytes=available,
        memory_limit_bytes=cgroup.memory_limit(root),
        shared=_read_space(root / "dev/shm"),
        open_files=_open_files_limit(),
        processes_left=cgroup.processes_left(root),
        folder=read_folder(folder, root),
        container=_container_engine(root, environment),
        output_buffered=_is_block_buffered(sys.stdout),
    )


def read_folder(folder: Path, root: Path = Path("/")) -> Folder:
    """Read the facts of a folder, or of its nearest existing parent."""
    path = folder.absolute()
    existing = next((parent for parent in (path, *path.parents) if parent.is_dir()), path)
    space, files_left = _read_space(existing), None
    if hasattr(os, "statvfs") and space is not None:
        files = os.statvfs(existing)
        files_left = files.f_favail if files.f_files else None  # btrfs and others do not count inodes
    return Folder(
        path=str(existing),
        space=space,
        files_left=files_left,
        writable=os.access(existing, os.W_OK | os.X_OK),
        kind=filesystem_type(existing, cgroup.read_text(root / "proc/self/mountinfo")),
    )


def filesystem_type(path: Path, mountinfo: str) -> str:
    """Return the type of the file system that contains a path: "ext4", "overlay", "tmpfs"; "" if it is unknown.

    Args:
        path: an absolute path.
        mountinfo: the content of /proc/self/mountinfo.

    Source: proc(5): the mount point is the fifth word, and the type is the first word after a single hyphen.
    """
    longest, filesystem = -1, ""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 5 or not after:
            continue
        mount_point = Path(_OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[4]))
        # A later mount on the same mount point hides an earlier mount.
        if path.is_relative_to(mount_point) and len(mount_point.parts) >= longest:
            longest, filesystem = len(mount_point.parts), after.split()[0]
    return filesystem


def read_torch(*, deep: bool = False) -> tuple[TorchInstall | None, str]:
    """Return facts about torch and ""; or None and the reason why it cannot be imported, "" if it is not installed.

    Args:
        deep: True to read the free memory of each GPU as well, which creates a CUDA context on the GPU.

    Cost: imports torch, and queries the GPU driver for the devices.
    """
    if importlib.util.find_spec("torch") is None:
        return None, ""
    try:
        import torch
    except (ImportError, OSError) as error:  # a shared library is missing or has another version
        return None, f"{type(error).__name__}: {error}".splitlines()[0]
    with warnings.catch_warnings(record=True) as caught:  # torch only warns if a driver is too old
        warnings.simplefilter("always")
        usable = torch.cuda.is_available()
        gpus = tuple(_read_gpu(torch, index, deep=deep) for index in range(torch.cuda.device_count() if usable else 0))
    backends: Any = torch.backends
    install = TorchInstall(
        version=str(torch.__version__),
        cuda=torch.version.cuda,
        hip=torch.version.hip,
        gpus=gpus,
        mps=bool(backends.mps.is_available()),
        problem="" if gpus else " ".join(str(warning.message).splitlines()[0] for warning in caught[:1]),
        built_for=tuple(torch.cuda.get_arch_list()) if usable else (),
        threads=torch.get_num_threads(),
        cudnn_benchmark=bool(backends.cudnn.benchmark),
        deterministic=torch.are_deterministic_algorithms_enabled(),
        tf32_matmul=_allows_tf32(backends.cuda.matmul),
        tf32_convolution=_allows_tf32(backends.cudnn),
    )
    return install, ""


def _read_gpu(torch: Any, index: int, *, deep: bool) -> Gpu:
    properties = torch.cuda.get_device_properties(index)
    return Gpu(
        name=properties.name,
        memory_bytes=properties.total_memory,
        free_bytes=torch.cuda.mem_get_info(index)[0] if deep else None,
        capability=(properties.major, properties.minor),
    )


def _allows_tf32(backend: Any) -> bool | None:
    try:
        return bool(backend.allow_tf32)
    except RuntimeError:  # in torch 2.9 and later, if the program used both the legacy and the new API
        return None


def _installed_packages() -> Iterator[tuple[str, Package]]:
    for name in COMPILED_PACKAGES:
        try:
            package = distribution(name)
        except PackageNotFoundError:
            continue
        matches = (re.match(r"torch\s*\(?==\s*([\w.+]+)", line) for line in package.requires or ())
        yield name, Package(version=package.version, required_torch=next((m[1] for m in matches if m), ""))


def _import_problem(name: str) -> str:
    """Return the last line of the error from importing a package; "" if it can be imported."""
    command = [sys.executable, "-W", "ignore", "-c", f"import {name}"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=IMPORT_TIMEOUT_S, check=False)  # noqa: S603 - a fixed list of names
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = result.stderr.strip().splitlines()
    return (lines[-1] if lines else f"exit code {result.returncode}") if result.returncode else ""


def _read_driver(root: Path) -> str:
    match = _DRIVER.search(cgroup.read_text(root / "proc/driver/nvidia/version"))
    return match[1] if match else ""


def _list_device_files(root: Path) -> tuple[str, ...]:
    try:
        names = sorted(path.name for path in (root / "dev").iterdir())
    except OSError:
        return ()
    return tuple(f"/dev/{name}" for name in names if re.fullmatch(r"nvidia\d+|kfd|dxg", name))


def _gpu_makers_on_bus(root: Path) -> Iterator[str]:
    try:
        devices = list((root / "sys/bus/pci/devices").iterdir())
    except OSError:
        return
    for device in devices:
        maker = _MAKERS.get(cgroup.read_text(device / "vendor"))
        if maker and cgroup.read_text(device / "class").startswith(_GPU_CLASSES):
            yield maker


def _read_memory(root: Path) -> tuple[int | None, int | None]:
    """Return the machine's total memory and the memory available to this process, in bytes.

    The available memory is the smaller of what the machine and what the cgroup has left.
    """
    sizes: dict[str, int] = {}
    for line in cgroup.read_text(root / "proc/meminfo").splitlines():
        name, _, size = line.partition(":")
        kib = size.removesuffix("kB").strip()
        if kib.isdecimal():
            sizes[name] = int(kib) * 1024
    available = (sizes.get("MemAvailable"), cgroup.memory_left(root))
    return sizes.get("MemTotal"), min((size for size in available if size is not None), default=None)


def _read_space(path: Path) -> Space | None:
    if not hasattr(os, "statvfs"):
        return None
    try:
        stats = os.statvfs(path)
    except OSError:
        return None
    return Space(total_bytes=stats.f_frsize * stats.f_blocks, free_bytes=stats.f_frsize * stats.f_bavail)


def _open_files_limit() -> tuple[int, int] | None:
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft, hard


def _container_engine(root: Path, environment: Mapping[str, str]) -> str:
    if "KUBERNETES_SERVICE_HOST" in environment:
        return "kubernetes"
    if (root / "run/.containerenv").exists():
        return "podman"
    if (root / ".dockerenv").exists():
        return "docker"
    group = re.search(r"docker|kubepods|containerd|lxc", cgroup.group_names(root))
    engine = environment.get("container") or (group[0] if group else "")
    return "kubernetes" if engine == "kubepods" else engine


def _is_block_buffered(stream: Any) -> bool:
    """Return True if a stream writes its text only when a block is full."""
    return not (getattr(stream, "line_buffering", True) or getattr(stream, "write_through", False))
