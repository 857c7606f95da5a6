"""No switch of torch's is left on from looking for a bug: they cost time, or fill the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trueloop.doctor.diagnosis import Check, Diagnosis, Need, ok, warning
from trueloop.doctor.machine import Machine

SLOW: Final[Mapping[str, tuple[str, ...]]] = {
    "CUDA_LAUNCH_BLOCKING": ("1",),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": ("1",),
    "TORCH_DISTRIBUTED_DEBUG": ("DETAIL",),
    "PYTORCH_JIT": ("0",),
    "TORCHDYNAMO_DISABLE": ("1",),
    "PYTHONDEVMODE": ("1",),
    "PYTHONASYNCIODEBUG": ("1",),
    "PYTHONMALLOC": ("debug", "malloc_debug", "pymalloc_debug"),
}


def look(machine: Machine, need: Need) -> Diagnosis:
    """Look at the variables."""
    on = [name for name, values in SLOW.items() if machine.environment.get(name, "") in values]
    if not on:
        return ok("No switch is left on from looking for a bug.")
    told = ", ".join(f"{name}={machine.environment[name]}" for name in on)
    return warning(f"{told}: every update takes longer.", f"unset {' '.join(on)}")


CHECK = Check(title="Switches for debugging", group="output", look=look)
