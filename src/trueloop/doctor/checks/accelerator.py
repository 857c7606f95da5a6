"""Checks of the GPU: device, driver, kernels, silent fallback to the CPU, and numerics."""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from trueloop.core.formatting import format_count, format_size
from trueloop.doctor.diagnosis import Diagnosis, RunRequirements, check, error, note, ok, unknown, warning
from trueloop.doctor.machine import REQUIRE_GPU, Gpu, Machine, gpu_required

GPU_VARIABLES: Final = ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_GPUS_ON_NODE", "NVIDIA_VISIBLE_DEVICES")
"""Variables that a batch system or a container engine sets when it assigns GPUs."""
NO_GPU_VALUES: Final = ("", "-1", "0", "none", "void", "no", "NoDevFiles")
"""Values of `GPU_VARIABLES` that mean no GPU; "0" may be the number of devices or the index of the first device."""
MIN_DRIVERS: Final[Mapping[int, tuple[int, ...]]] = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580, 65, 6)}
"""Oldest Linux driver that supports each major version of CUDA."""
CUBLAS_WORKSPACES: Final = (":4096:8", ":16:8")
"""Values of CUBLAS_WORKSPACE_CONFIG with which cuBLAS sums in a fixed order."""
MIN_TF32_CAPABILITY: Final = (8, 0)  # Ampere, the first architecture with TF32


@check("Device", "accelerator")
def check_gpu(machine: Machine, run: RunRequirements) -> Diagnosis | None:
    """Check that the requested device exists."""
    if machine.torch is None:
        return None
    count = len(machine.gpus)
    cuda = re.fullmatch(r"cuda(?::(\d+))?", run.device)
    if cuda and int(cuda[1] or 0) >= count:
        return error(
            f"device is {run.device!r}, but torch can use {format_count(count, 'GPU')}.",
            "Choose a device that exists; the other checks may show why this one is missing.",
        )
    if run.device == "mps" and not machine.torch.mps:
        return error("device is 'mps', which is not available.", "Choose auto or cpu.")
    if run.device == "cpu" and count:
        return note(f"{_list_gpus(machine.gpus)} is not used: device is 'cpu'.", "Leave the device at auto to use it.")
    if count and run.processes > count and run.device != "cpu":
        return error(
            f"{run.processes} processes are requested, but torch can use {format_count(count, 'GPU')}.",
            f"Start one process per GPU: --processes {count}.",
        )
    return _check_free_memory(machine)


def _check_free_memory(machine: Machine) -> Diagnosis:
    busy_gpus = [gpu for gpu in machine.gpus if gpu.free_bytes is not None and gpu.free_bytes < gpu.memory_bytes / 2]
    if busy_gpus:
        free = ", ".join(f"{format_size(gpu.free_bytes or 0)} of {format_size(gpu.memory_bytes)}" for gpu in busy_gpus)
        return warning(
            f"Other programs use most of a GPU's memory: {free} are free on {busy_gpus[0].name}.",
            "End them (nvidia-smi lists them), or choose another device with CUDA_VISIBLE_DEVICES.",
        )
    if machine.gpus:
        return ok(f"{_list_gpus(machine.gpus)}.")
    return ok("Apple's GPU (MPS)." if machine.torch and machine.torch.mps else "The CPU: torch can use no GPU.")


def _list_gpus(gpus: tuple[Gpu, ...]) -> str:
    return ", ".join(f"cuda:{index} {gpu.name} ({format_size(gpu.memory_bytes)})" for index, gpu in enumerate(gpus))


@check("Silent fallback to the CPU", "accelerator", failure="ENV004")
def check_cpu_fallback(machine: Machine, run: RunRequirements) -> Diagnosis | None:
    """Check for signs of a GPU if torch can use no GPU and would train on the CPU without a message."""
    cpu_requested = run.device == "cpu"  # then training on the CPU is intended
    if machine.torch is None or machine.gpus or machine.torch.mps or cpu_requested:
        return None
    if gpu_required(machine.environment):
        return error(
            f"{REQUIRE_GPU} is set, but torch can use no GPU. {_no_gpu_reason(machine)}", _no_gpu_remedy(machine)
        )
    if (hidden := machine.environment.get("CUDA_VISIBLE_DEVICES")) in ("", "-1"):
        if not machine.device_files:
            return None
        return note(
            f"CUDA_VISIBLE_DEVICES={hidden!r} hides the GPUs of this machine.",
            "Unset CUDA_VISIBLE_DEVICES to use them.",
        )
    evidence = next(_signs_of_gpu(machine), None)
    if evidence is None:
        return ok("There is no sign of a GPU; training uses the CPU.")
    return warning(
        f"There seems to be a GPU ({evidence}), but the run would use the CPU. {_no_gpu_reason(machine)}",
        f"{_no_gpu_remedy(machine)} Set {REQUIRE_GPU}=1 to refuse such a run.",
    )


def _signs_of_gpu(machine: Machine) -> Iterator[str]:
    if machine.device_files:
        yield machine.device_files[0]
    if machine.driver:
        yield f"NVIDIA driver {machine.driver} is loaded"
    if visible := machine.environment.get("CUDA_VISIBLE_DEVICES"):
        yield f"CUDA_VISIBLE_DEVICES={visible}"
    for name in GPU_VARIABLES:
        value = machine.environment.get(name, "").strip()
        is_index = value == "0" and name in ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS")
        if is_index or value not in NO_GPU_VALUES:
            yield f"{name}={value}"
    if machine.gpu_makers_on_bus:
        yield f"a GPU of {machine.gpu_makers_on_bus[0]} is on the PCI bus"


def _no_gpu_reason(machine: Machine) -> str:
    torch = machine.torch
    if torch is None:
        return ""
    if not torch.cuda and not torch.hip:
        return f"torch {torch.version} is a build for the CPU only."
    if torch.problem:
        return torch.problem if torch.problem.endswith(".") else f"{torch.problem}."
    if not machine.driver and not machine.device_files:
        return "There is no device file of a GPU: this container or job has no GPU assigned."
    return f"torch {torch.version} is built for {torch.build}, but finds no usable device."


def _no_gpu_remedy(machine: Machine) -> str:
    torch = machine.torch
    if torch is not None and not torch.cuda and not torch.hip:
        return "Install a build with CUDA: https://pytorch.org/get-started/locally/."
    if not machine.device_files and machine.container:
        option = "resources.limits nvidia.com/gpu: 1" if machine.container == "kubernetes" else "docker run --gpus all"
        return f"Assign the GPU to the container: {option}."
    return "Run nvidia-smi, and compare the driver with what torch's CUDA version needs."


@check("GPU driver", "accelerator")
def check_driver(machine: Machine, run: RunRequirements) -> Diagnosis | None:
    """Check that NVIDIA's driver is new enough for the CUDA version that torch was built for.

    Source: https://docs.nvidia.com/deploy/cuda-compatibility/, minor version compatibility.
    """
    if machine.torch is None or not machine.torch.cuda or not machine.driver:
        return None
    cuda, driver = machine.torch.cuda, tuple(int(part) for part in machine.driver.split("."))
    major = cuda.partition(".")[0]
    min_driver = MIN_DRIVERS.get(int(major))
    if min_driver is None:
        return unknown(f"trueloop does not know which driver CUDA {cuda} needs; {machine.driver} is loaded.")
    if driver < min_driver and not machine.gpus:  # an older driver works with NVIDIA's compatibility package
        needed = ".".join(f"{part:02d}" if index else str(part) for index, part in enumerate(min_driver))
        return error(
            f"NVIDIA driver {machine.driver} is too old: torch's CUDA {cuda} needs {needed} or newer.",
            f"Update the driver, or install a torch that is built for an older CUDA than {major}.",
        )
    return ok(f"NVIDIA driver {machine.driver} runs CUDA {cuda}.")


@check("Kernels for this GPU", "accelerator")
def check_kernels(machine: Machine, run: RunRequirements) -> Diagnosis | None:
    """Check that torch has kernels for every GPU.

    Source: https://docs.nvidia.com/cuda/cuda-c-programming-guide/#application-compatibility: machine code runs on
    devices of the same major capability, "compute_" code on every newer one.
    """
    torch = machine.torch
    if torch is None or not torch.cuda or not torch.gpus or not torch.built_for:
        return None
    for gpu in torch.gpus:
        if not any(_runs_on(target, gpu.capability) for target in torch.built_for):
            sm = "sm_{}{}".format(*gpu.capability)
            return error(
                f"{gpu.name} is {sm}, but torch {torch.version} has kernels for {', '.join(torch.built_for)} only.",
                "Install a torch built for this GPU: a newer one for a new GPU, an older one for an old GPU.",
            )
    return ok(f"torch has kernels for {torch.gpus[0].name}.")


def _runs_on(target: str, capability: tuple[int, int]) -> bool:
    match = re.fullmatch(r"(sm|compute)_(\d+)(\d)[a-z]?", target)
    if match is None:
        return False
    built_for = (int(match[2]), int(match[3]))
    return built_for <= capability and (match[1] == "compute" or built_for[0] == capability[0])


@check("Reproducible results", "numbers")
def check_repeatable(machine: Machine, run: RunRequirements) -> Diagnosis | None:
    """Check whether two identical runs on this machine give the same numbers.

    Source: https://docs.pytorch.org/docs/stable/notes/randomness.html
    """
    torch = machine.torch
    if torch is None:
        return None
    workspace = machine.environment.get("CUBLAS_WORKSPACE_CONFIG")
    if not torch.gpus:
        return ok("On the CPU, results are the same in every run with the same number of threads.")
    if run.deterministic or torch.deterministic:
        if workspace is not None and workspace not in CUBLAS_WORKSPACES:
            return error(
                f"CUBLAS_WORKSPACE_CONFIG is {workspace!r}: with deterministic kernels, matrix products fail.",
                f"CUBLAS_WORKSPACE_CONFIG={CUBLAS_WORKSPACES[0]}, or unset it: trueloop sets it.",
            )
        return ok("Only deterministic kernels are used.")
    if torch.cudnn_benchmark:
        return note(
            "cudnn.benchmark is on: convolutions may use another algorithm, and round differently, in each run.",
            "Use --deterministic if runs must be identical bit for bit.",
        )
    return note("Some kernels sum in an order that changes from run to run.", "Use --deterministic if that matters.")


@check("TF32", "numbers")
def check_tf32(machine: Machine, run: RunRequirements) -> Diagnosis | None:
    """Check whether this GPU computes float32 operations with a 10-bit mantissa.

    Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices
    """
    torch = machine.torch
    if torch is None or torch.hip or not any(gpu.capability >= MIN_TF32_CAPABILITY for gpu in torch.gpus):
        return None
    if machine.environment.get("NVIDIA_TF32_OVERRIDE") == "0":
        return ok("TF32 is off (NVIDIA_TF32_OVERRIDE=0): float32 has its full precision.")
    if torch.tf32_matmul is None or torch.tf32_convolution is None:
        return unknown("PyTorch does not report TF32, because it was set with both the legacy and the new API.")
    uses_tf32 = {"matrix products": torch.tf32_matmul, "convolutions": torch.tf32_convolution}
    reduced = [name for name, is_on in uses_tf32.items() if is_on]
    if not reduced:
        return ok("TF32 is off: float32 has its full precision.")
    return note(
        f"TF32 is on for {' and '.join(reduced)}: float32 has a 10-bit mantissa there, and is several times faster.",
        "Set NVIDIA_TF32_OVERRIDE=0 to compare numbers with those of another device.",
    )
