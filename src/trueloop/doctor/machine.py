"""What is known of the machine, the container and the packages a run would start in: the facts that checks read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

REQUIRE_GPU: Final = "TRUELOOP_REQUIRE_GPU"
"""The variable that forbids to train on the CPU because no GPU could be used."""
SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108  # where loader workers pass batches; nothing of ours is written there


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One device, as torch sees it."""

    name: str
    memory_bytes: int
    free_bytes: int | None = None
    """None where nobody asked: to look costs a context on the device."""
    capability: tuple[int, int] = (0, 0)
    """(9, 0): what torch calls sm_90."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchInstall:
    """The installed torch, imported."""

    version: str
    """"2.13.0+cpu"."""
    cuda: str | None = None
    """CUDA it was built for: "12.8"; None = a build without."""
    hip: str | None = None
    gpus: tuple[Gpu, ...] = ()
    mps: bool = False
    problem: str = ""
    """Torch's own words on why it can use no GPU."""
    built_for: tuple[str, ...] = ()
    """"sm_80", "sm_90", "compute_90"."""
    threads: int = 1
    """Within one operation."""
    cudnn_benchmark: bool = False
    deterministic: bool = False
    """Only deterministic kernels, as ``use_deterministic_algorithms`` sets it."""
    tf32_matmul: bool | None = False
    """None = torch cannot say: both of its ways to set it were used."""
    tf32_convolution: bool | None = False

    @property
    def build(self) -> str:
        """For what it was built: "CUDA 12.8", "ROCm 6.2", "CPU only"."""
        return f"CUDA {self.cuda}" if self.cuda else f"ROCm {self.hip}" if self.hip else "CPU only"


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package that has to fit torch."""

    version: str
    required_torch: str = ""
    """The one version of torch it says it was built for; "" = it says none."""
    problem: str = ""
    """Why it cannot be imported, where somebody tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Room in a file system."""

    total_bytes: int
    free_bytes: int
    """For this user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """Where runs are to lie, and on what."""

    path: str
    """The nearest folder there is."""
    space: Space | None = None
    files_left: int | None = None
    """None where the file system counts none."""
    writable: bool = True
    kind: str = ""
    """Of file system: "ext4", "overlay", "tmpfs"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Everything that checks read. None and "" = it could not be told."""

    python: tuple[int, int, int] = (3, 11, 0)
    system: str = "Linux"
    torch: TorchInstall | None = None
    torch_problem: str = ""
    """Why torch cannot be imported, where it is installed."""
    packages: Mapping[str, Package] = field(default_factory=dict[str, Package])
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    driver: str = ""
    """Version of the loaded NVIDIA driver: "535.104.05"."""
    device_files: tuple[str, ...] = ()
    """Of GPUs: "/dev/nvidia0", "/dev/kfd"."""
    on_bus: tuple[str, ...] = ()
    """Makers of the GPUs on the PCI bus, which a container sees also where it was given none: "NVIDIA"."""
    cores: int = 1
    """That this process may run on."""
    quota: float | None = None
    """Cores' worth of time that the group of this process gets; None = no limit."""
    memory_bytes: int | None = None
    available_bytes: int | None = None
    """Before the machine or the group's limit says no."""
    memory_limit_bytes: int | None = None
    """Of the group; None = no limit."""
    shared: Space | None = None
    """What lies at `SHARED_MEMORY`."""
    open_files: tuple[int, int] | None = None
    """Soft and hard limit; -1 = none."""
    processes_left: int | None = None
    """Processes and threads that may still be started; None = no limit."""
    folder: Folder | None = None
    container: str = ""
    """"docker", "podman", "kubernetes", "container"; "" = none."""
    output_buffered: bool = False
    """Standard output is kept back until a block is full."""

    @property
    def usable_cores(self) -> float:
        """Cores that can be kept busy: those allowed, or the group's share of time where that is less."""
        return min(float(self.cores), self.quota) if self.quota else float(self.cores)

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Those that torch can use."""
        return self.torch.gpus if self.torch else ()


def gpu_required(environment: Mapping[str, str]) -> bool:
    """Return True where the environment forbids to train without a GPU.

    Args:
        environment: variables by name.
    """
    return environment.get(REQUIRE_GPU, "").strip().lower() not in ("", "0", "false", "no", "off")
