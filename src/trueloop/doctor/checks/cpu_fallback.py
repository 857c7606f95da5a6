"""Something says that there is a GPU for this run, and torch would train on the CPU without a word."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from trueloop.doctor.diagnosis import Check, Diagnosis, Need, error, note, ok, warning
from trueloop.doctor.machine import REQUIRE_GPU, Machine, gpu_required

GRANTED: Final = ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_GPUS_ON_NODE", "NVIDIA_VISIBLE_DEVICES")
"""What a batch system or a container engine sets where it hands out GPUs."""
NONE: Final = ("", "-1", "0", "none", "void", "no", "NoDevFiles")
"""What such a variable says where there is none; "0" of them is a number of devices, or the device 0."""


def look(machine: Machine, need: Need) -> Diagnosis | None:
    """Weigh what points to a GPU, where torch can use none."""
    by_name = need.device == "cpu"  # asked for: not silent
    if machine.torch is None or machine.gpus or machine.torch.mps or by_name:
        return None
    if gpu_required(machine.environment):
        return error(f"{REQUIRE_GPU} is set, and torch can use no GPU. {_why(machine)}", _remedy(machine))
    if (hidden := machine.environment.get("CUDA_VISIBLE_DEVICES")) in ("", "-1"):
        if not machine.device_files:
            return None
        return note(
            f"CUDA_VISIBLE_DEVICES={hidden!r} hides the GPUs of this machine.",
            "Unset CUDA_VISIBLE_DEVICES to use them.",
        )
    signs = list(_signs(machine))
    if not signs:
        return ok("Nothing points to a GPU, and none would be used.")
    return warning(
        f"There seems to be a GPU ({signs[0]}), and the run would go on the CPU. {_why(machine)}",
        f"{_remedy(machine)} Set {REQUIRE_GPU}=1, and such a run is refused.",
    )


def _signs(machine: Machine) -> Iterator[str]:
    if machine.device_files:
        yield machine.device_files[0]
    if machine.driver:
        yield f"NVIDIA's driver {machine.driver} is loaded"
    if given := machine.environment.get("CUDA_VISIBLE_DEVICES"):
        yield f"CUDA_VISIBLE_DEVICES={given}"
    yield from _granted(machine.environment)
    if machine.on_bus:
        yield f"one of {machine.on_bus[0]}'s is on the PCI bus"


def _granted(environment: Mapping[str, str]) -> Iterator[str]:
    for name in GRANTED:
        value = environment.get(name, "").strip()
        device_0 = value == "0" and name in ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS")
        if device_0 or value not in NONE:
            yield f"{name}={value}"


def _why(machine: Machine) -> str:
    torch = machine.torch
    if torch is None:
        return ""
    if not torch.cuda and not torch.hip:
        return f"torch {torch.version} is a build for the CPU only."
    if torch.problem:
        return torch.problem if torch.problem.endswith(".") else f"{torch.problem}."
    if not machine.driver and not machine.device_files:
        return "No device file of a GPU is here: this container or job was given none."
    return f"torch {torch.version} is built for {torch.build}, and finds no device it can use."


def _remedy(machine: Machine) -> str:
    torch = machine.torch
    if torch is not None and not torch.cuda and not torch.hip:
        return "Install a build with CUDA: https://pytorch.org/get-started/locally/."
    if not machine.device_files and machine.container:
        given = "resources.limits nvidia.com/gpu: 1" if machine.container == "kubernetes" else "docker run --gpus all"
        return f"Give the container its GPU: {given}."
    return "See what nvidia-smi says, and whether the driver is newer than torch's CUDA asks for."


CHECK = Check(title="Silent fallback to the CPU", group="accelerator", look=look, failure="ENV004")
