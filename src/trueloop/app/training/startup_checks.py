"""Check the machine when a run starts, and refuse an unintended fallback to the CPU."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from trueloop.app.training.resource_needs import checkpoint_size_bytes, settings_need
from trueloop.core.errors import InvalidConfig
from trueloop.doctor.machine import REQUIRE_GPU, gpu_required
from trueloop.doctor.probe import read_machine
from trueloop.doctor.run_checks import PROBLEM_LEVELS, run_checks, summarize
from trueloop.training.config import TrainConfig
from trueloop.training.loop import Assembly


def inspect_machine(assembly: Assembly, config: TrainConfig, folder: Path | None) -> dict[str, Any]:
    """Inspect the machine and return facts for the journal.

    Args:
        assembly: the assembled run.
        config: the settings.
        folder: the run folder; None = nothing is written.

    Returns:
        "line": a summary of the machine and its problems; "found": the warnings and errors, in the doctor's JSON form.

    Cost: about 1 ms; 10 ms for the first call.
    """
    machine = read_machine(folder or Path())
    requirements = replace(
        settings_need(config),
        device=str(assembly.device),
        processes=assembly.parallel.processes.size,
        checkpoint_bytes=checkpoint_size_bytes(assembly.model, config) if folder else None,
    )
    results = run_checks(machine if folder else replace(machine, folder=None), requirements)
    problems = [each.as_json() for each in results if each.diagnosis.level in PROBLEM_LEVELS]
    return {"line": summarize(machine, results), "found": problems}


def refuse_cpu_fallback(requested: str, device: torch.device, environment: Mapping[str, str]) -> None:
    """Refuse to fall back to the CPU if the environment requires a GPU.

    Args:
        requested: the device setting; an explicit "cpu" is allowed.
        device: the resolved device.
        environment: environment variables by name.

    Raises:
        InvalidConfig: the device "auto" resolved to the CPU.
    """
    if requested == "auto" and device.type == "cpu" and gpu_required(environment):
        raise InvalidConfig(
            f"device is 'auto', PyTorch cannot use a GPU, and {REQUIRE_GPU} is {environment[REQUIRE_GPU]!r}.",
            why="The run would silently use the CPU, which is many times slower.",
            fix=f"Run `trueloop doctor` for the cause; to train on the CPU, unset {REQUIRE_GPU} or pass --device cpu.",
        )
