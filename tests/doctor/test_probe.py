"""Facts read from a constructed file tree, from this machine, and from torch."""

from __future__ import annotations

import builtins
import importlib.util
import io
import os
import tempfile
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trueloop.doctor import probe
from trueloop.doctor.diagnosis import RunRequirements
from trueloop.doctor.machine import Gpu, Package
from trueloop.doctor.probe import read_folder, read_machine, read_torch
from trueloop.doctor.run_checks import run_checks

DRIVERS = {
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 2023\nGCC version:": "535.104.05",
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build": "570.86.15",
    "nothing of the kind": "",
}


def write_files(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_a_container_with_cgroup_version_2(tmp_path: Path):
    root = write_files(tmp_path, {
        "proc/self/cgroup": "0::/\n",
        "proc/meminfo": "MemTotal: 4096 kB\nMemAvailable: 2048 kB\nHugePages_Total: 0\n",
        "sys/fs/cgroup/cpu.max": "150000 100000\n",
        "sys/fs/cgroup/memory.max": "1048576\n",
        "sys/fs/cgroup/memory.current": "600000\n",
        "sys/fs/cgroup/memory.stat": "anon 5\ninactive_file 100000\n",
        "sys/fs/cgroup/pids.max": "100\n",
        "sys/fs/cgroup/pids.current": "40\n",
        "dev/nvidia0": "", "dev/nvidiactl": "", "dev/null": "",
        "sys/bus/pci/devices/0/vendor": "0x10de\n", "sys/bus/pci/devices/0/class": "0x030200\n",
        "sys/bus/pci/devices/1/vendor": "0x10de\n", "sys/bus/pci/devices/1/class": "0x040300\n",
        "run/.containerenv": "",
    })  # fmt: skip
    facts = read_machine(tmp_path, root=root, environment={})
    assert (facts.quota, facts.memory_limit_bytes, facts.processes_left) == (1.5, 2**20, 60)
    assert (facts.memory_bytes, facts.available_bytes) == (4 * 2**20, 2**20 - 600_000 + 100_000)
    assert (facts.device_files, facts.gpu_makers_on_bus, facts.container) == (("/dev/nvidia0",), ("NVIDIA",), "podman")
    assert facts.usable_cores == min(1.5, len(os.sched_getaffinity(0)))


def test_nested_groups_of_cgroup_version_1(tmp_path: Path):
    none = str(2**63 - 4096)
    root = write_files(tmp_path, {
        "proc/self/cgroup": "4:memory:/docker/ab/job\n3:cpu,cpuacct:/docker/ab\n1:name=systemd:/\nbroken\n",
        "sys/fs/cgroup/memory/docker/ab/job/memory.limit_in_bytes": none,
        "sys/fs/cgroup/memory/docker/ab/memory.limit_in_bytes": "5000",
        "sys/fs/cgroup/memory/docker/ab/memory.usage_in_bytes": "2000",
        "sys/fs/cgroup/memory/docker/ab/memory.stat": "total_inactive_file 7",
        "sys/fs/cgroup/cpu/docker/ab/cpu.cfs_quota_us": "50000",
        "sys/fs/cgroup/cpu/docker/ab/cpu.cfs_period_us": "100000",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
    })  # fmt: skip
    facts = read_machine(tmp_path, root=root, environment={})
    assert (facts.memory_limit_bytes, facts.available_bytes, facts.quota, facts.container) == (
        5000,
        3007,
        0.5,
        "docker",
    )
    assert facts.processes_left is None


def test_missing_kernel_files_are_no_error(tmp_path: Path):
    facts = read_machine(tmp_path / "none", root=tmp_path, environment={})
    assert (facts.memory_bytes, facts.available_bytes, facts.quota, facts.shared) == (None, None, None, None)
    assert (facts.driver, facts.device_files, facts.gpu_makers_on_bus, facts.container) == ("", (), (), "")
    assert facts.folder is not None
    assert (facts.folder.path, facts.folder.kind, facts.folder.writable) == (str(tmp_path), "", True)


@pytest.mark.parametrize(("text", "version"), DRIVERS.items())
def test_the_driver_version_is_parsed(text: str, version: str, tmp_path: Path):
    root = write_files(tmp_path, {"proc/driver/nvidia/version": text})
    assert read_machine(tmp_path, root=root, environment={}).driver == version


@pytest.mark.parametrize(
    ("environment", "container"),
    [({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"), ({"container": "lxc"}, "lxc"), ({}, "")],
)
def test_a_container_is_recognised_by_its_variables(environment: dict[str, str], container: str, tmp_path: Path):
    assert read_machine(tmp_path, root=tmp_path, environment=environment).container == container


def test_this_machine_is_read():
    torch = pytest.importorskip("torch")
    facts = read_machine(Path())
    assert facts.torch is not None
    assert (facts.torch.version, facts.torch.cuda) == (torch.__version__, torch.version.cuda)
    assert facts.torch.threads == torch.get_num_threads()
    assert len(facts.gpus) == (torch.cuda.device_count() if torch.cuda.is_available() else 0)
    assert facts.folder is not None
    assert facts.folder.space is not None
    assert not facts.packages, "packages are only read with deep=True"


def test_compiled_packages_are_imported_in_another_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    stub = tmp_path / "torchvision-0.1.dist-info"
    stub.mkdir()
    (stub / "METADATA").write_text(
        "Name: torchvision\nVersion: 0.1\nRequires-Dist: numpy\nRequires-Dist: torch==2.0.0\n"
    )
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator nms does not exist')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    packages = read_machine(tmp_path, deep=True).packages
    assert packages["torchvision"] == Package(
        version="0.1", required_torch="2.0.0", problem="RuntimeError: operator nms does not exist"
    )


def test_the_file_system_type_of_the_nearest_mount_is_read(tmp_path: Path):
    mounts = (
        f"1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 8:2 / {tmp_path}/my\\040runs rw,x shared:1 - nfs4 server:/ rw\nshort\n"
    )
    root = write_files(tmp_path, {"proc/self/mountinfo": mounts})
    (tmp_path / "my runs").mkdir()
    assert read_folder(tmp_path / "my runs" / "later" / "this", root).kind == "nfs4"
    assert read_folder(tmp_path / "other", root).kind == "ext4"


def test_buffered_standard_output(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(probe.sys, "stdout", io.TextIOWrapper(io.BytesIO()))
    assert read_machine(tmp_path, root=tmp_path).output_buffered
    monkeypatch.setattr(probe.sys, "stdout", io.TextIOWrapper(io.BytesIO(), write_through=True))
    assert not read_machine(tmp_path, root=tmp_path).output_buffered


def test_missing_torch(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert read_torch() == (None, "")


def test_broken_torch(monkeypatch: pytest.MonkeyPatch):
    real = builtins.__import__

    def broken(name: str, *args: Any, **options: Any) -> Any:
        if name == "torch":
            raise OSError("libcudart.so.12: cannot open shared object file\nand more")
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", broken)
    assert read_torch() == (None, "OSError: libcudart.so.12: cannot open shared object file")


def test_free_gpu_memory_is_read_only_with_deep(monkeypatch: pytest.MonkeyPatch):
    torch = pytest.importorskip("torch")
    known = SimpleNamespace(name="NVIDIA H200", total_memory=140 * 2**30, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: known)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_90"])
    queried: list[int] = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (2**30, queried.append(index)))
    facts, problem = read_torch()
    assert facts is not None
    assert (problem, facts.problem, facts.built_for, queried) == ("", "", ("sm_90",), [])
    gpu = Gpu(name="NVIDIA H200", memory_bytes=140 * 2**30, capability=(9, 0))
    assert facts.gpus == (gpu, gpu)
    deep, _ = read_torch(deep=True)
    assert deep is not None
    assert ([each.free_bytes for each in deep.gpus], queried) == ([2**30, 2**30], [0, 1])


def test_the_warning_of_torch_explains_a_missing_gpu(monkeypatch: pytest.MonkeyPatch):
    torch = pytest.importorskip("torch")

    def unavailable() -> bool:
        warnings.warn("CUDA initialization: The NVIDIA driver on your system is too old.\nMore", stacklevel=1)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", unavailable)
    facts, _ = read_torch()
    assert facts is not None
    assert (facts.gpus, facts.problem) == ((), "CUDA initialization: The NVIDIA driver on your system is too old.")


def test_a_setting_that_torch_refuses_to_report_is_unknown(monkeypatch: pytest.MonkeyPatch):
    torch = pytest.importorskip("torch")

    class Mixed:
        benchmark = True

        @property
        def allow_tf32(self) -> bool:
            raise RuntimeError("a mix of the legacy and new APIs")

    monkeypatch.setattr(torch.backends, "cudnn", Mixed())
    facts, _ = read_torch()
    assert facts is not None
    assert (facts.tf32_convolution, facts.cudnn_benchmark) == (None, True)


FILES = (
    "proc/self/cgroup", "proc/self/mountinfo", "proc/meminfo", "proc/driver/nvidia/version", "sys/fs/cgroup/cpu.max",
    "sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory.current", "sys/fs/cgroup/memory.stat", "sys/fs/cgroup/pids.max",
    "sys/fs/cgroup/pids.current", "sys/bus/pci/devices/0/vendor", "sys/bus/pci/devices/0/class",
)  # fmt: skip
WORDS = st.sampled_from(
    [
        "0::/",
        "4:memory:/a",
        "max",
        "100000",
        "-1",
        "\u0663",
        "0",
        "MemTotal:",
        "kB",
        "inactive_file",
        " - ",
        "/",
        "\n",
        " ",
        ":",
        "Kernel Module",
        "535.",
        "0x10de",
        "\\040",
        "\x00",
        "\ud800",
    ]
)


@given(st.lists(st.lists(WORDS, max_size=12).map("".join), min_size=len(FILES), max_size=len(FILES)))
@settings(max_examples=60, deadline=None)
def test_malformed_kernel_files_never_raise(texts: list[str]):
    with tempfile.TemporaryDirectory() as folder:
        for name, text in zip(FILES, texts, strict=True):
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode("utf-8", "surrogatepass"))
        facts = read_machine(Path(folder), root=Path(folder), environment={})
        assert run_checks(facts, RunRequirements(workers=2, batch_bytes=1, checkpoint_bytes=1))
