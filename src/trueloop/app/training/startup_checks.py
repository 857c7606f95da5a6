"""What is looked at when a run starts: the machine, in one line; and that it is not the CPU by mistake."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from trueloop.app.training.resource_needs import checkpoint_size_bytes, settings_need
from trueloop.core.errors import InvalidConfig
from trueloop.doctor.machine import REQUIRE_GPU, gpu_required
from trueloop.doctor.probe import read_machine
from trueloop.doctor.run_checks import BAD, examine, in_one_line
from trueloop.training.config import TrainConfig
from trueloop.training.loop import Assembly


def inspect_machine(assembly: Assembly, config: TrainConfig, folder: Path | None) -> dict[str, Any]:
    """Examine the machine a run starts on, as facts for its journal.

    Args:
        assembly: what the loop turns.
        config: its settings.
        folder: where the run lies; None = nothing is written.

    Returns:
        "line": the machine, and what is wrong, in one line; "found": each warning and error, as the doctor's JSON.

    Cost: about 1 ms; 10 ms the first time.
    """
    machine = read_machine(folder or Path())
    need = replace(
        settings_need(config),
        device=str(assembly.device),
        processes=assembly.parallel.processes.size,
        checkpoint_bytes=checkpoint_size_bytes(assembly.model, config) if folder else None,
    )
    found = examine(machine if folder else replace(machine, folder=None), need)
    grave = [each.as_json() for each in found if each.diagnosis.level in BAD]
    return {"line": in_one_line(machine, found), "found": grave}


def refuse_cpu_fallback(requested: str, device: torch.device, environment: Mapping[str, str]) -> None:
    """Refuse to train on the CPU because no GPU could be used, where the environment forbids it.

    Args:
        requested: the setting; "cpu" is asked for by name, and allowed.
        device: the device it came to.
        environment: variables by name.

    Raises:
        InvalidConfig: it came to the CPU.
    """
    if requested == "auto" and device.type == "cpu" and gpu_required(environment):
        raise InvalidConfig(
            f"device is 'auto', torch can use no GPU, and {REQUIRE_GPU} is {environment[REQUIRE_GPU]!r}.",
            why="The run would go on the CPU, many times slower, without a word.",
            fix=f"`trueloop doctor` says why there is none; unset {REQUIRE_GPU}, or --device cpu, to train without.",
        )
