"""NVIDIA's driver is new enough for the CUDA that torch was built for.

Source: https://docs.nvidia.com/deploy/cuda-compatibility/, minor version compatibility: the oldest driver of each
major version of CUDA.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trueloop.doctor.diagnosis import Check, Diagnosis, Need, error, ok, unknown
from trueloop.doctor.machine import Machine

OLDEST: Final[Mapping[int, tuple[int, ...]]] = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580, 65, 6)}
"""Driver for Linux by major version of CUDA."""


def look(machine: Machine, need: Need) -> Diagnosis | None:
    """Compare the loaded driver with the oldest that will do."""
    if machine.torch is None or not machine.torch.cuda or not machine.driver:
        return None
    cuda, driver = machine.torch.cuda, tuple(int(part) for part in machine.driver.split("."))
    oldest = OLDEST.get(int(cuda.partition(".")[0]))
    if oldest is None:
        return unknown(f"Which driver CUDA {cuda} needs is not known here; {machine.driver} is loaded.")
    if driver < oldest and not machine.gpus:  # with NVIDIA's compatibility package an older one works
        written = ".".join(f"{part:02d}" if index else str(part) for index, part in enumerate(oldest))
        return error(
            f"NVIDIA's driver is {machine.driver}; torch's CUDA {cuda} needs {written} or newer.",
            f"Update the driver, or install a torch that is built for an older CUDA than {cuda.partition('.')[0]}.",
        )
    return ok(f"NVIDIA's driver {machine.driver} runs CUDA {cuda}.")


CHECK = Check(title="GPU driver", group="accelerator", look=look)
