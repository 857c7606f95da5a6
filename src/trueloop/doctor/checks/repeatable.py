"""Whether the same run gives the same numbers twice on this machine.

Source: https://docs.pytorch.org/docs/stable/notes/randomness.html
"""

from __future__ import annotations

from typing import Final

from trueloop.doctor.diagnosis import Check, Diagnosis, Need, error, note, ok
from trueloop.doctor.machine import Machine

WORKSPACES: Final = (":4096:8", ":16:8")
"""With these, cuBLAS adds in one order."""


def look(machine: Machine, need: Need) -> Diagnosis | None:
    """Look at what lets kernels choose their order of addition."""
    torch = machine.torch
    if torch is None:
        return None
    workspace = machine.environment.get("CUBLAS_WORKSPACE_CONFIG")
    if not torch.gpus:
        return ok("On the CPU the same number of threads gives the same numbers.")
    if need.deterministic or torch.deterministic:
        if workspace is not None and workspace not in WORKSPACES:
            return error(
                f"CUBLAS_WORKSPACE_CONFIG is {workspace!r}: with deterministic kernels, matrix products raise.",
                f"CUBLAS_WORKSPACE_CONFIG={WORKSPACES[0]}, or unset it: trueloop sets it.",
            )
        return ok("Only deterministic kernels.")
    if torch.cudnn_benchmark:
        return note(
            "cudnn.benchmark is on: convolutions may use another algorithm, and round otherwise, in each run.",
            "--deterministic, where runs have to repeat bit for bit.",
        )
    return note("Some kernels add in an order that changes from run to run.", "--deterministic, where that matters.")


CHECK = Check(title="Repeatable numbers", group="numbers", look=look)
