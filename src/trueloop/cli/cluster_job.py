"""Write a job for a cluster: an sbatch script, a submitit script, or a Kubernetes manifest."""

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from trueloop.core.errors import InvalidConfig

Kind = Literal["slurm", "submitit", "kubernetes"]

FILES: Final = {"slurm": "slurm.sh", "submitit": "submitit.py.txt", "kubernetes": "kubernetes.yaml"}
MAX_RESTARTS_PER_POD: Final = 3  # as many as torchrun's restarts on one machine


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterJob:
    """The command and the resources of a job."""

    recipe: str
    train_arguments: tuple[str, ...]
    """Settings and flags for `trueloop train`."""
    nodes: int
    """Number of machines."""
    processes: int
    """Number of processes on each machine."""
    gpus: int
    """Number of GPUs of each machine; 0 = none."""
    cpus: int
    """Number of cores of each machine."""
    hours: float
    """Time limit in hours; only for SLURM."""
    image: str
    """Container image; only for Kubernetes."""
    name: str = ""
    """Name of the job and its run folder; "" = the name of the recipe."""
    generated_by: str = ""
    """Command line that wrote the job."""

    def text(self, kind: Kind) -> str:
        """Return the content of the job's file.

        Raises:
            InvalidConfig: a size is too small, or the name is not valid for a job.
        """
        self._check()
        root = "/runs" if kind == "kubernetes" else "runs"
        flags = ["--run-dir", f"{root}/{self._job_name}", "--processes", str(self.processes)]
        if kind == "kubernetes" and self.nodes > 1:  # Kubernetes does not set the number of machines
            flags += ["--nodes", str(self.nodes), "--rendezvous", f"{self._job_name}-0.{self._job_name}:29500"]
        command = ["trueloop", "train", self.recipe, *flags, *self.train_arguments]
        minutes = max(1, round(self.hours * 60))
        values = {
            "MADE_BY": self.generated_by.replace("\n", " "),
            "NAME": self._job_name,
            "NODES": str(self.nodes),
            "PROCESSES": str(self.processes),
            "CPUS": str(self.cpus),
            "GPUS": str(self.gpus),
            "GPU_LINES": _gpu_lines(kind, self.gpus),
            "GPU_ENV": _gpu_variable(kind, self.gpus),
            "TIME": f"{minutes // 60}:{minutes % 60:02d}:00",
            "MINUTES": str(minutes),
            "BACKOFF": str(MAX_RESTARTS_PER_POD * self.nodes),
            "IMAGE": self.image,
            "COMMAND": format_command(command, kind),
        }
        template = (Path(__file__).parent / "templates" / FILES[kind]).read_text(encoding="utf-8")
        return re.sub("@([A-Z_]+)@", lambda match: values[match[1]], template)

    @property
    def _job_name(self) -> str:
        stem = self.recipe.rpartition(":")[0] if ".py:" in self.recipe else self.recipe
        return self.name or re.sub(r"[^a-z0-9]+", "-", Path(stem).stem.lower()).strip("-")

    def _check(self) -> None:
        for flag, value, minimum in (
            ("--nodes", self.nodes, 1),
            ("--processes", self.processes, 1),
            ("--gpus", self.gpus, 0),
            ("--cpus", self.cpus, 1),
        ):
            if value < minimum:
                raise InvalidConfig(f"{flag} is {value}.", fix=f"It must be {minimum} or more.")
        if not 0 < self.hours < 10_000:
            raise InvalidConfig(f"--hours is {self.hours:g}.", fix="It must be above 0 and below 10,000.")
        for flag, word in (("--image", self.image), ("RECIPE", self.recipe)):
            if not word.isprintable() or not word.strip() or (flag == "--image" and re.search(r"[\s#'\"]|: ", word)):
                raise InvalidConfig(f"{flag} is {word!r}.", fix="It must be one word without special characters.")
        if not re.fullmatch(r"[a-z](?:[a-z0-9-]{0,50}[a-z0-9])?", self._job_name):
            raise InvalidConfig(
                f"The job's name would be {self._job_name!r}.",
                fix="Pass --name with a lower-case letter, then lower-case letters, digits and hyphens, at most 52 "
                "characters.",
            )


def format_command(command: list[str], kind: Kind) -> str:
    """Format a command in the syntax of a shell, Python or YAML; `$(` is escaped, as Kubernetes replaces `$(NAME)`."""
    if kind == "slurm":
        return shlex.join(command)
    if kind == "submitit":
        return "[\n" + "".join(f"    {word!r},\n" for word in command) + "]"
    return json.dumps([word.replace("$(", "$$(") for word in command])


def _gpu_lines(kind: Kind, gpus: int) -> str:
    if not gpus or kind == "submitit":
        return ""
    if kind == "slurm":
        return f"#SBATCH --gpus-per-node={gpus}\n"
    return f'            limits: {{nvidia.com/gpu: "{gpus}"}}\n'


def _gpu_variable(kind: Kind, gpus: int) -> str:
    """Return the line that makes a job with GPUs fail if it cannot use them."""
    if not gpus or kind == "submitit":
        return ""
    if kind == "slurm":
        return "# Fail if PyTorch cannot use a GPU, instead of training on the CPU.\nexport TRUELOOP_REQUIRE_GPU=1\n"
    return '            - {name: TRUELOOP_REQUIRE_GPU, value: "1"}    # fail without a GPU\n'
