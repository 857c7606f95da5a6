"""Data classes that describe the machine, the container and the installed packages for the checks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

REQUIRE_GPU: Final = "TRUELOOP_REQUIRE_GPU"
"""Environment variable that forbids training on the CPU if no GPU is usable."""
SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108  # where loader workers pass batches; trueloop writes nothing there


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as reported by torch."""

    name: str
    memory_bytes: int
    free_bytes: int | None = None
    """Free memory; None if it was not read, because reading it creates a context on the device."""
    capability: tuple[int, int] = (0, 0)
    """Compute capability: (9, 0) is torch's sm_90."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchInstall:
    """Facts about the installed torch, read after importing it."""

    version: str
    """Version with its build: "2.13.0+cpu"."""
    cuda: str | None = None
    """CUDA version of the build: "12.8"; None = a build without CUDA."""
    hip: str | None = None
    """ROCm version of the build; None = a build without ROCm."""
    gpus: tuple[Gpu, ...] = ()
    mps: bool = False
    problem: str = ""
    """Torch's warning that explains why it cannot use a GPU."""
    built_for: tuple[str, ...] = ()
    """Architectures that torch has kernels for: "sm_80", "sm_90", "compute_90"."""
    threads: int = 1
    """Number of threads per operation."""
    cudnn_benchmark: bool = False
    deterministic: bool = False
    """True if ``use_deterministic_algorithms`` is on."""
    tf32_matmul: bool | None = False
    """True if matrix products use TF32; None = unknown, because it was set with both the legacy and the new API."""
    tf32_convolution: bool | None = False
    """True if convolutions use TF32; None = unknown, as for ``tf32_matmul``."""

    @property
    def build(self) -> str:
        """Target of the build: "CUDA 12.8", "ROCm 6.2", "CPU only"."""
        return f"CUDA {self.cuda}" if self.cuda else f"ROCm {self.hip}" if self.hip else "CPU only"


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package whose binaries have to match torch."""

    version: str
    required_torch: str = ""
    """The only version of torch that the package's metadata allows; "" = it names no version."""
    problem: str = ""
    """Why the package cannot be imported; "" = it can be, or the import was not tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Size and free space of a file system."""

    total_bytes: int
    free_bytes: int
    """Free space that this user may use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """The folder for runs and its file system."""

    path: str
    """Path of the folder, or of its nearest existing parent."""
    space: Space | None = None
    files_left: int | None = None
    """Number of free inodes; None if the file system does not count them."""
    writable: bool = True
    kind: str = ""
    """Type of the file system: "ext4", "overlay", "tmpfs"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """All facts that checks read; None or "" = unknown."""

    python: tuple[int, int, int] = (3, 11, 0)
    system: str = "Linux"
    torch: TorchInstall | None = None
    torch_problem: str = ""
    """Why the installed torch cannot be imported."""
    packages: Mapping[str, Package] = field(default_factory=dict[str, Package])
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    driver: str = ""
    """Version of the loaded NVIDIA driver: "535.104.05"."""
    device_files: tuple[str, ...] = ()
    """Device files of GPUs: "/dev/nvidia0", "/dev/kfd"."""
    gpu_makers_on_bus: tuple[str, ...] = ()
    """Makers of the GPUs on the PCI bus, which a container sees even without a GPU assigned: "NVIDIA"."""
    cores: int = 1
    """Number of cores that this process may run on."""
    quota: float | None = None
    """CPU quota of the process's cgroup in cores; None = no limit."""
    memory_bytes: int | None = None
    available_bytes: int | None = None
    """Memory that can be allocated before the machine or the cgroup runs out."""
    memory_limit_bytes: int | None = None
    """Memory limit of the cgroup; None = no limit."""
    shared: Space | None = None
    """Size and free space of `SHARED_MEMORY`."""
    open_files: tuple[int, int] | None = None
    """Soft and hard limit on the number of open files; -1 = unlimited."""
    processes_left: int | None = None
    """Number of processes and threads that may still start; None = no limit."""
    folder: Folder | None = None
    container: str = ""
    """Container engine: "docker", "podman", "kubernetes" or "container"; "" = no container."""
    output_buffered: bool = False
    """True if standard output is buffered in blocks."""

    @property
    def usable_cores(self) -> float:
        """Number of usable cores: the smaller of the allowed cores and the cgroup's quota."""
        return min(float(self.cores), self.quota) if self.quota else float(self.cores)

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """GPUs that torch can use."""
        return self.torch.gpus if self.torch else ()


def gpu_required(environment: Mapping[str, str]) -> bool:
    """Return True if the environment forbids training without a GPU."""
    return environment.get(REQUIRE_GPU, "").strip().lower() not in ("", "0", "false", "no", "off")
