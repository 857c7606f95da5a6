"""Every check on constructed machines: its message, level and remedy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from trueloop.doctor.diagnosis import Diagnosis, Level, RunRequirements
from trueloop.doctor.machine import Folder, Gpu, Machine, Package, Space, TorchInstall
from trueloop.doctor.run_checks import all_checks, has_errors, run_checks

GIB = 2**30
H200 = Gpu(name="NVIDIA H200", memory_bytes=140 * GIB, capability=(9, 0))
CPU = TorchInstall(version="2.13.0+cpu")
CUDA = TorchInstall(version="2.13.0+cu128", cuda="12.8", built_for=("sm_80", "sm_90", "compute_90"))
ON_GPU = replace(CUDA, gpus=(H200,))
SOUND = Machine(
    torch=CPU,
    cores=8,
    memory_bytes=64 * GIB,
    available_bytes=32 * GIB,
    shared=Space(total_bytes=8 * GIB, free_bytes=8 * GIB),
    open_files=(1024, 4096),
    processes_left=4000,
    folder=Folder(path="/runs", space=Space(total_bytes=100 * GIB, free_bytes=50 * GIB), files_left=10**6, kind="ext4"),
)
DEFAULT = RunRequirements()
NOTHING = Space(total_bytes=64 * 2**20, free_bytes=64 * 2**20)


def inspect(name: str, need: RunRequirements | None = None, **changes: Any) -> Diagnosis | None:
    return all_checks()[name].inspect(replace(SOUND, **changes), need or DEFAULT)


def diagnose(name: str, need: RunRequirements | None = None, **changes: Any) -> Diagnosis:
    found = inspect(name, need, **changes)
    assert found is not None
    return found


def test_all_checks_run_and_a_sound_machine_has_no_problem():
    found = run_checks(SOUND, RunRequirements(workers=2, batch_bytes=2**20, checkpoint_bytes=GIB))
    assert {each.diagnosis.level for each in found} == {Level.OK}
    not_applicable = {"driver", "fitting-packages", "kernels", "tf32"}  # there is no GPU and no package
    assert {each.check.name for each in found} == set(all_checks()) - not_applicable
    assert not has_errors(found)


CASES: dict[str, tuple[str, RunRequirements, dict[str, Any], Level, str, str]] = {
    "an old Python": ("python", DEFAULT, {"python": (3, 10, 4)}, Level.ERROR, "Python 3.10.4", "3.11"),
    "no torch": (
        "torch-installed",
        DEFAULT,
        {"torch": None},
        Level.ERROR,
        "not installed",
        "trueloop[train]",
    ),
    "a broken torch": (
        "torch-installed",
        DEFAULT,
        {"torch": None, "torch_problem": "OSError: libcudart.so.12"},
        Level.ERROR,
        "libcudart.so.12",
        "--force-reinstall",
    ),
    "an old torch": (
        "torch-installed",
        DEFAULT,
        {"torch": TorchInstall(version="2.5.1")},
        Level.ERROR,
        "2.5.1 is too old",
        "upgrade",
    ),
    "torchvision for another torch": (
        "fitting-packages",
        DEFAULT,
        {"packages": {"torchvision": Package(version="0.27.0", required_torch="2.12.0")}},
        Level.WARNING,
        "was built for torch 2.12.0",
        "torch==2.13.0 torchvision --index-url",
    ),
    "torchvision with CUDA and torch without": (
        "fitting-packages",
        DEFAULT,
        {"packages": {"torchvision": Package(version="0.28.0+cu128")}},
        Level.WARNING,
        "built for cu128",
        "whl/cpu",
    ),
    "torchvision that does not import": (
        "fitting-packages",
        DEFAULT,
        {"packages": {"torchvision": Package(version="0.28.0", required_torch="2.13.0", problem="operator nms.")}},
        Level.WARNING,
        "cannot be imported with torch 2.13.0+cpu: operator nms.",
        "pip uninstall torchvision",
    ),
    "a GPU that is not there": ("gpu", RunRequirements(device="cuda"), {}, Level.ERROR, "can use 0 GPUs", "device"),
    "the third of one GPU": (
        "gpu",
        RunRequirements(device="cuda:2"),
        {"torch": ON_GPU},
        Level.ERROR,
        "'cuda:2', but torch can use 1 GPU.",
        "device",
    ),
    "no Apple": ("gpu", RunRequirements(device="mps"), {}, Level.ERROR, "mps", "auto"),
    "more processes than GPUs": (
        "gpu",
        RunRequirements(processes=4),
        {"torch": ON_GPU},
        Level.ERROR,
        "4 processes",
        "--processes 1",
    ),
    "an idle GPU": ("gpu", RunRequirements(device="cpu"), {"torch": ON_GPU}, Level.NOTE, "is not used", "auto"),
    "a GPU that others use": (
        "gpu",
        DEFAULT,
        {"torch": replace(CUDA, gpus=(replace(H200, free_bytes=3 * GIB),))},
        Level.WARNING,
        "3.0 GiB of 140.0 GiB are free",
        "nvidia-smi",
    ),
    "a device file, and torch without CUDA": (
        "cpu-fallback",
        DEFAULT,
        {"device_files": ("/dev/nvidia0",)},
        Level.WARNING,
        "(/dev/nvidia0), but the run would use the CPU. torch 2.13.0+cpu is a build for the CPU only.",
        "Install a build with CUDA",
    ),
    "a container without a GPU assigned": (
        "cpu-fallback",
        DEFAULT,
        {"torch": CUDA, "gpu_makers_on_bus": ("NVIDIA",), "container": "docker"},
        Level.WARNING,
        "on the PCI bus",
        "docker run --gpus all",
    ),
    "a pod without a GPU assigned": (
        "cpu-fallback",
        DEFAULT,
        {"torch": CUDA, "environment": {"TRUELOOP_REQUIRE_GPU": "1"}, "container": "kubernetes"},
        Level.ERROR,
        "TRUELOOP_REQUIRE_GPU is set",
        "nvidia.com/gpu",
    ),
    "a warning of torch": (
        "cpu-fallback",
        DEFAULT,
        {"torch": replace(CUDA, problem="The NVIDIA driver is too old."), "driver": "450.1"},
        Level.WARNING,
        "The NVIDIA driver is too old. ".strip(),
        "nvidia-smi",
    ),
    "a GPU from the batch system": (
        "cpu-fallback",
        DEFAULT,
        {"torch": CUDA, "environment": {"SLURM_JOB_GPUS": "0"}},
        Level.WARNING,
        "SLURM_JOB_GPUS=0",
        "TRUELOOP_REQUIRE_GPU=1",
    ),
    "GPUs that are hidden": (
        "cpu-fallback",
        DEFAULT,
        {"torch": CUDA, "device_files": ("/dev/nvidia0",), "environment": {"CUDA_VISIBLE_DEVICES": ""}},
        Level.NOTE,
        "CUDA_VISIBLE_DEVICES='' hides",
        "Unset",
    ),
    "a driver that is too old": (
        "driver",
        DEFAULT,
        {"torch": CUDA, "driver": "470.82.01"},
        Level.ERROR,
        "470.82.01 is too old: torch's CUDA 12.8 needs 525.60.13",
        "Update the driver",
    ),
    "an unknown CUDA version": (
        "driver",
        DEFAULT,
        {"torch": replace(CUDA, cuda="19.0"), "driver": "999.10"},
        Level.UNKNOWN,
        "CUDA 19.0",
        "",
    ),
    "a GPU without kernels": (
        "kernels",
        DEFAULT,
        {"torch": replace(CUDA, gpus=(replace(H200, capability=(7, 0)),))},
        Level.ERROR,
        "is sm_70, but torch 2.13.0+cu128 has kernels for sm_80, sm_90, compute_90 only",
        "built for this GPU",
    ),
    "more workers than cores": (
        "worker-count",
        RunRequirements(workers=6, processes=2),
        {},
        Level.WARNING,
        "12 loader workers (6 for each of 2 processes) are requested, but 8 cores are usable",
        "--workers 3 ",
    ),
    "more workers than the group's share": (
        "worker-count",
        RunRequirements(workers=4),
        {"quota": 1.5},
        Level.WARNING,
        "4 loader workers are requested, but 1.5 cores are usable; the cgroup's limit is 1.5 of 8",
        "--workers 0 ",
    ),
    "more threads than the group's share": (
        "threads",
        DEFAULT,
        {"torch": replace(CPU, threads=8), "quota": 2.0},
        Level.WARNING,
        "8 threads per operation share 2 cores (the cgroup's limit; torch counts 8)",
        "OMP_NUM_THREADS=2",
    ),
    "threads of several processes": (
        "threads",
        RunRequirements(processes=4, threads=8),
        {},
        Level.WARNING,
        "4 processes of 8 threads",
        "--threads 2",
    ),
    "batches that do not fit": (
        "shared-memory",
        RunRequirements(workers=4, batch_bytes=32 * 2**20),
        {"shared": NOTHING, "container": "docker"},
        Level.ERROR,
        "64.0 MiB free; 4 workers prefetch 2 batches of 32.0 MiB into it: 288.0 MiB",
        "--shm-size=1g",
    ),
    "batches that do not fit into a pod": (
        "shared-memory",
        RunRequirements(workers=4, batch_bytes=GIB),
        {"container": "kubernetes"},
        Level.ERROR,
        "9.0 GiB",
        "sizeLimit: 18Gi at /dev/shm",
    ),
    "a container with the default /dev/shm": (
        "shared-memory",
        DEFAULT,
        {"shared": NOTHING, "container": "podman"},
        Level.WARNING,
        "has a size of only 64.0 MiB",
        "shm_size",
    ),
    "no shared memory": ("shared-memory", DEFAULT, {"shared": None}, Level.UNKNOWN, "no /dev/shm", ""),
    "little memory": (
        "memory",
        DEFAULT,
        {"available_bytes": GIB // 2},
        Level.WARNING,
        "512.0 MiB of memory are available",
        "End other",
    ),
    "a state beyond the limit": (
        "memory",
        RunRequirements(checkpoint_bytes=3 * GIB),
        {"available_bytes": 4 * GIB, "memory_limit_bytes": 5 * GIB},
        Level.ERROR,
        "limit is 5.0 GiB, of the machine's 64.0 GiB, but the state and batches of this run take 6.0 GiB",
        "Raise the limit",
    ),
    "unknown memory": ("memory", DEFAULT, {"available_bytes": None}, Level.UNKNOWN, "does not report", ""),
    "too few open files": (
        "open-files",
        RunRequirements(workers=80),
        {"open_files": (256, 4096)},
        Level.ERROR,
        "256 files may be open at the same time (ulimit -n), but 80 workers alone need 304",
        "ulimit -n 4096",
    ),
    "few open files": (
        "open-files",
        RunRequirements(workers=16),
        {"open_files": (256, 256)},
        Level.WARNING,
        "need 368",
        "ulimit -n 1024",
    ),
    "too few processes": (
        "process-limit",
        RunRequirements(workers=8),
        {"processes_left": 20},
        Level.ERROR,
        "needs about 33",
        "by 100 or more",
    ),
    "checkpoints that do not fit": (
        "disk",
        RunRequirements(checkpoint_bytes=20 * GIB),
        {},
        Level.ERROR,
        "4 checkpoints of 20.0 GiB, including the one being written, take 80.0 GiB",
        "--checkpoint.keep-last 1",
    ),
    "no inodes": (
        "disk",
        DEFAULT,
        {"folder": replace(SOUND.folder or Folder(path=""), files_left=3)},
        Level.ERROR,
        "3 files",
        "disk",
    ),
    "a folder without write permission": (
        "disk",
        DEFAULT,
        {"folder": Folder(path="/runs", writable=False)},
        Level.ERROR,
        "cannot be written",
        "--run-dir",
    ),
    "a disk that is nearly full": (
        "disk",
        DEFAULT,
        {"folder": Folder(path="/runs", space=Space(total_bytes=GIB, free_bytes=2**20))},
        Level.WARNING,
        "1.0 MiB are free in /runs",
        "space",
    ),
    "a container's own layer": (
        "run-folder",
        DEFAULT,
        {"folder": Folder(path="/app", kind="overlay"), "container": "docker"},
        Level.WARNING,
        "deletes runs and checkpoints",
        "Mount a volume",
    ),
    "a folder in memory": (
        "run-folder",
        DEFAULT,
        {"folder": Folder(path="/run", kind="tmpfs")},
        Level.WARNING,
        "is in memory",
        "mirror",
    ),
    "a cuBLAS workspace that raises": (
        "repeatable",
        RunRequirements(deterministic=True),
        {"torch": ON_GPU, "environment": {"CUBLAS_WORKSPACE_CONFIG": ":0:0"}},
        Level.ERROR,
        "':0:0'",
        ":4096:8",
    ),
    "cudnn.benchmark": (
        "repeatable",
        DEFAULT,
        {"torch": replace(ON_GPU, cudnn_benchmark=True)},
        Level.NOTE,
        "cudnn.benchmark is on",
        "--deterministic",
    ),
    "any GPU": ("repeatable", DEFAULT, {"torch": ON_GPU}, Level.NOTE, "from run to run", "--deterministic"),
    "TF32": (
        "tf32",
        DEFAULT,
        {"torch": replace(ON_GPU, tf32_convolution=True)},
        Level.NOTE,
        "on for convolutions",
        "OVERRIDE=0",
    ),
    "TF32 set with both APIs": (
        "tf32",
        DEFAULT,
        {"torch": replace(ON_GPU, tf32_matmul=None)},
        Level.UNKNOWN,
        "both the legacy",
        "",
    ),
    "blocking launches": (
        "debugging",
        DEFAULT,
        {"environment": {"CUDA_LAUNCH_BLOCKING": "1"}},
        Level.WARNING,
        "CUDA_LAUNCH_BLOCKING=1",
        "unset CUDA_LAUNCH_BLOCKING",
    ),
    "buffered output in a container": (
        "output-buffering",
        DEFAULT,
        {"output_buffered": True, "container": "docker"},
        Level.WARNING,
        "log lags",
        "PYTHONUNBUFFERED=1",
    ),
    "buffered output": (
        "output-buffering",
        DEFAULT,
        {"output_buffered": True},
        Level.NOTE,
        "appears late",
        "PYTHONUNBUFFERED=1",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_problem_has_a_message_and_a_remedy(case: str):
    name, need, changes, level, expected, remedy = CASES[case]
    found = diagnose(name, need, **changes)
    assert found.level is level, found
    assert any(each in found.message for each in expected.split("|")), found.message
    assert remedy in found.remedy
    assert bool(found.remedy) == (level is not Level.UNKNOWN)


def test_every_check_has_a_case():
    assert {name for name, *_ in CASES.values()} == set(all_checks())


# Correct machines that resemble wrong ones


@pytest.mark.parametrize(
    ("name", "need", "changes"),
    [
        ("torch-installed", DEFAULT, {"torch": TorchInstall(version="2.10.0a0+git123")}),  # 10 is more than 6
        (
            "fitting-packages",
            DEFAULT,
            {"packages": {"torchvision": Package(version="0.28.0+cpu", required_torch="2.13.0")}},
        ),
        ("driver", DEFAULT, {"torch": CUDA, "driver": "535.104.05"}),
        ("driver", DEFAULT, {"torch": ON_GPU, "driver": "470.82.01"}),  # it works: a compatibility package
        (
            "kernels",
            DEFAULT,
            {"torch": replace(CUDA, gpus=(replace(H200, capability=(8, 6)),))},
        ),  # sm_80 runs on 8.6
        (
            "kernels",
            DEFAULT,
            {"torch": replace(CUDA, gpus=(replace(H200, capability=(12, 0)),))},
        ),  # compute_90
        ("worker-count", RunRequirements(workers=8), {}),
        ("threads", RunRequirements(processes=8), {"torch": replace(CPU, threads=8)}),  # torchrun sets 1
        ("threads", RunRequirements(processes=16, threads=1), {}),  # the user requested more processes than cores
        ("shared-memory", RunRequirements(workers=0), {"shared": NOTHING}),
        ("shared-memory", RunRequirements(workers=1, batch_bytes=2**20), {"shared": NOTHING}),
        ("memory", RunRequirements(checkpoint_bytes=100 * GIB), {"torch": ON_GPU}),  # the state is on the device
        ("open-files", RunRequirements(workers=64), {"open_files": (-1, -1)}),
        ("disk", DEFAULT, {"folder": replace(SOUND.folder or Folder(path=""), files_left=None)}),
        ("run-folder", DEFAULT, {"folder": Folder(path="/", kind="overlay")}),  # a live system, no container
        ("repeatable", RunRequirements(deterministic=True), {"torch": ON_GPU}),
        (
            "tf32",
            DEFAULT,
            {"torch": replace(ON_GPU, tf32_matmul=True), "environment": {"NVIDIA_TF32_OVERRIDE": "0"}},
        ),
        (
            "debugging",
            DEFAULT,
            {"environment": {"CUDA_LAUNCH_BLOCKING": "0", "TORCH_DISTRIBUTED_DEBUG": "INFO"}},
        ),
        (
            "cpu-fallback",
            DEFAULT,
            {"environment": {"NVIDIA_VISIBLE_DEVICES": "void", "SLURM_GPUS_ON_NODE": "0"}},
        ),
        ("cpu-fallback", DEFAULT, {"environment": {"TRUELOOP_REQUIRE_GPU": "0"}}),
    ],
)
def test_a_correct_machine_passes(name: str, need: RunRequirements, changes: dict[str, Any]):
    found = diagnose(name, need, **changes)
    assert (found.level, found.remedy) == (Level.OK, ""), found


@pytest.mark.parametrize(
    ("name", "need", "changes"),
    [
        ("cpu-fallback", DEFAULT, {"torch": ON_GPU, "environment": {"TRUELOOP_REQUIRE_GPU": "1"}}),
        ("cpu-fallback", RunRequirements(device="cpu"), {"device_files": ("/dev/nvidia0",)}),
        ("cpu-fallback", DEFAULT, {"torch": replace(CPU, mps=True)}),
        ("shared-memory", DEFAULT, {"system": "Darwin", "shared": None}),
        (
            "tf32",
            DEFAULT,
            {"torch": replace(CUDA, gpus=(replace(H200, capability=(7, 5)),), tf32_matmul=True)},
        ),
        ("open-files", DEFAULT, {"open_files": None}),
        ("process-limit", DEFAULT, {"processes_left": None}),
    ],
)
def test_a_check_that_does_not_apply_returns_none(name: str, need: RunRequirements, changes: dict[str, Any]):
    assert inspect(name, need, **changes) is None
