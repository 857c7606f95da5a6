"""`trueloop template slurm RECIPE`: write the file that starts a run on a cluster."""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from cyclopts import Parameter

from trueloop.app.option_types import Count
from trueloop.cli.cluster_job import ClusterJob, Kind
from trueloop.core.errors import InvalidConfig


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Resources of the job, as options of the command line."""

    nodes: Count = 1
    """Number of machines."""
    processes: Count = 1
    """Number of processes on each machine, one per GPU."""
    gpus: Count | None = None
    """Number of GPUs of each machine, 0 for none; by default one per process."""
    cpus: Count | None = None
    """Number of CPU cores of each machine; by default 8 per process."""
    hours: float = 24.0
    """Time limit of the job in hours (SLURM)."""
    image: str = ""
    """Container image with your code and trueloop (Kubernetes); by default trueloop:cuda, or trueloop:cpu without
    GPUs."""
    name: str = ""
    """Name of the job and of its run folder; by default that of the recipe."""


def template_command(
    kind: Kind, recipe: str, /, *words: str, sizes: Sizes | None = None, output: Path | None = None
) -> None:
    """Write the file that starts a run on a cluster. The job saves when it is stopped, is requeued, and resumes.

    Args:
        kind: Kind of file: slurm (an sbatch script), submitit (a Python script), or kubernetes (a manifest).
        recipe: Recipe, as for `trueloop train`.
        words: Settings and flags for `trueloop train`, after a `--`.
        output: New file to write to; by default standard output.
    """
    sizes = sizes or Sizes()
    gpus = sizes.processes if sizes.gpus is None else sizes.gpus
    job = ClusterJob(
        recipe=recipe,
        train_arguments=words,
        nodes=sizes.nodes,
        processes=sizes.processes,
        gpus=gpus,
        cpus=8 * sizes.processes if sizes.cpus is None else sizes.cpus,
        hours=sizes.hours,
        image=sizes.image or ("trueloop:cuda" if gpus else "trueloop:cpu"),
        name=sizes.name,
        generated_by=shlex.join(["trueloop", *sys.argv[1:]]),
    )
    text = job.text(kind)
    if output is None:
        sys.stdout.write(text)
        return
    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InvalidConfig(f"{str(output)!r} cannot be written: {error.strerror}.", fix="Name a new file.") from error
