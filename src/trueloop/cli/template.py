"""`trueloop template slurm RECIPE`: the file that starts a run on a cluster, filled in."""

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
    """What the job is given, as options of the command line."""

    nodes: Count = 1
    """Machines."""
    processes: Count = 1
    """Processes on each machine, one per GPU."""
    gpus: Count | None = None
    """GPUs of each machine; as many as processes unless said, 0 for none."""
    cpus: Count | None = None
    """Cores of each machine; 8 for each process unless said."""
    hours: float = 24.0
    """Longest time (SLURM)."""
    image: str = ""
    """Container image with your code and trueloop in it (Kubernetes); trueloop:cuda unless said, trueloop:cpu without
    GPUs."""
    name: str = ""
    """Name of the job and of its run folder; the recipe's unless said."""


def template_command(
    kind: Kind, recipe: str, /, *words: str, sizes: Sizes | None = None, output: Path | None = None
) -> None:
    """Write the file that starts a run on a cluster: it is requeued, saves on the stop signal, and continues.

    Args:
        kind: slurm (an sbatch script), submitit (a Python script), or kubernetes (a manifest).
        recipe: As for `trueloop train`.
        words: Settings for `trueloop train`, after a `--`.
        output: Where to write it; standard output unless said.
    """
    sizes = sizes or Sizes()
    gpus = sizes.processes if sizes.gpus is None else sizes.gpus
    job = ClusterJob(
        recipe=recipe,
        words=words,
        nodes=sizes.nodes,
        processes=sizes.processes,
        gpus=gpus,
        cpus=8 * sizes.processes if sizes.cpus is None else sizes.cpus,
        hours=sizes.hours,
        image=sizes.image or ("trueloop:cuda" if gpus else "trueloop:cpu"),
        name=sizes.name,
        made_by=shlex.join(["trueloop", *sys.argv[1:]]),
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
