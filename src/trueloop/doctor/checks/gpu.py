"""The device that is asked for is there, and which ones there are."""

from __future__ import annotations

import re

from trueloop.core.formatting import format_count, format_size
from trueloop.doctor.diagnosis import Check, Diagnosis, Need, error, note, ok, warning
from trueloop.doctor.machine import Gpu, Machine


def look(machine: Machine, need: Need) -> Diagnosis | None:
    """Compare what is asked for with what torch can use."""
    if machine.torch is None:
        return None
    count = len(machine.gpus)
    named = re.fullmatch(r"cuda(?::(\d+))?", need.device)
    if named and int(named[1] or 0) >= count:
        return error(
            f"device is {need.device!r}, and torch can use {format_count(count, 'GPU')}.",
            "Choose a device that is there, or see the other lines for why it is not.",
        )
    if need.device == "mps" and not machine.torch.mps:
        return error("device is 'mps', which is not there.", "Choose auto or cpu.")
    if need.device == "cpu" and count:
        return note(f"{_listed(machine.gpus)} stays unused: device is 'cpu'.", "Leave the device at auto to use it.")
    if count and need.processes > count and need.device != "cpu":
        return error(
            f"{need.processes} processes are asked for, and torch can use {format_count(count, 'GPU')}.",
            f"One process for each GPU: --processes {count}.",
        )
    return _told(machine)


def _told(machine: Machine) -> Diagnosis:
    taken = [gpu for gpu in machine.gpus if gpu.free_bytes is not None and gpu.free_bytes < gpu.memory_bytes / 2]
    if taken:
        free = ", ".join(f"{format_size(gpu.free_bytes or 0)} of {format_size(gpu.memory_bytes)}" for gpu in taken)
        return warning(
            f"Other programs take most of a GPU: {free} are free on {taken[0].name}.",
            "End them (nvidia-smi lists them), or choose another device with CUDA_VISIBLE_DEVICES.",
        )
    if machine.gpus:
        return ok(f"{_listed(machine.gpus)}.")
    return ok("Apple's GPU (MPS)." if machine.torch and machine.torch.mps else "The CPU: torch can use no GPU.")


def _listed(gpus: tuple[Gpu, ...]) -> str:
    return ", ".join(f"cuda:{index} {gpu.name} ({format_size(gpu.memory_bytes)})" for index, gpu in enumerate(gpus))


CHECK = Check(title="Device", group="accelerator", look=look)
