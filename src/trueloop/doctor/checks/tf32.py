"""Whether float32 is computed with ten bits of mantissa on this GPU.

Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices
"""

from __future__ import annotations

from typing import Final

from trueloop.doctor.diagnosis import Check, Diagnosis, Need, note, ok, unknown
from trueloop.doctor.machine import Machine

FIRST: Final = (8, 0)  # Ampere


def look(machine: Machine, need: Need) -> Diagnosis | None:
    """Look at both switches, and at NVIDIA's own."""
    torch = machine.torch
    if torch is None or torch.hip or not any(gpu.capability >= FIRST for gpu in torch.gpus):
        return None
    if machine.environment.get("NVIDIA_TF32_OVERRIDE") == "0":
        return ok("TF32 is off (NVIDIA_TF32_OVERRIDE=0): float32 is computed as such.")
    if torch.tf32_matmul is None or torch.tf32_convolution is None:
        return unknown("Whether TF32 is on cannot be told: it was set in torch's old way and in its new one.")
    kinds = {"matrix products": torch.tf32_matmul, "convolutions": torch.tf32_convolution}
    reduced = [name for name, on in kinds.items() if on]
    if not reduced:
        return ok("TF32 is off: float32 is computed as such.")
    return note(
        f"TF32 is on for {' and '.join(reduced)}: float32 has 10 bits of mantissa there, and is several times faster.",
        "NVIDIA_TF32_OVERRIDE=0, where numbers are compared with those of another device.",
    )


CHECK = Check(title="TF32", group="numbers", look=look)
