"""Torch's kernels were compiled for the GPU that is here.

Source: https://docs.nvidia.com/cuda/cuda-c-programming-guide/#application-compatibility: machine code runs on devices
of the same major capability, "compute_" code on every newer one.
"""

from __future__ import annotations

import re

from trueloop.doctor.diagnosis import Check, Diagnosis, Need, error, ok
from trueloop.doctor.machine import Machine


def look(machine: Machine, need: Need) -> Diagnosis | None:
    """Compare each GPU's capability with what torch was built for."""
    torch = machine.torch
    if torch is None or not torch.cuda or not torch.gpus or not torch.built_for:
        return None
    for gpu in torch.gpus:
        if not any(_runs(text, gpu.capability) for text in torch.built_for):
            sm = "sm_{}{}".format(*gpu.capability)
            return error(
                f"{gpu.name} is {sm}, and torch {torch.version} has kernels for {', '.join(torch.built_for)} only.",
                "Install a torch built for this GPU: a newer one for a new GPU, an older one for an old GPU.",
            )
    return ok(f"torch has kernels for {torch.gpus[0].name}.")


def _runs(text: str, capability: tuple[int, int]) -> bool:
    found = re.fullmatch(r"(sm|compute)_(\d+)(\d)[a-z]?", text)
    if found is None:
        return False
    built = (int(found[2]), int(found[3]))
    return built <= capability and (found[1] == "compute" or built[0] == capability[0])


CHECK = Check(title="Kernels for this GPU", group="accelerator", look=look)
