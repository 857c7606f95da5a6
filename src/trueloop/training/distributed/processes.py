"""The processes of a run, and the collectives they use in addition to the gradients' all-reduce.

Every process makes the same decision on whether to call a collective: from what all of them know (the split of the
epoch, the global norm), or by a collective of this module. A process that calls one alone waits indefinitely.
"""

import atexit
import gc
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from trueloop.core.errors import InvalidConfig, ProcessLost
from trueloop.training.distributed.launcher_env import LaunchInfo, read_launch_info
from trueloop.training.distributed.rendezvous import KEEPALIVE_TIMEOUT_S, TIMEOUT_S, init_process_group

CHUNK_BYTES: Final = 2**28
"""Number of bytes broadcast at a time; a broadcast needs twice this memory."""
MAX_COMBINED_BYTES: Final = 2**16
"""Largest number of bytes, over all processes, that are sent together with other numbers in one message."""
_BACKENDS: Final = re.compile(r"gloo/transport|NCCL")  # identifies a connection error that is a plain RuntimeError
_NOISE: Final = re.compile(r"^\[[^\]]*\] *|(?<=\.) This is typically caused by .*")  # torch's source line and advice

T = TypeVar("T")
Numbers = list[Tensor | float]


class Processes:
    """This process and the others of the run. A single process never uses torch.distributed.

    Args:
        rank: rank of this process, from 0; rank 0 writes the run's files.
        size: number of processes.
        device: device of this process's tensors.
        launcher: name of the launcher, for messages.
    """

    def __init__(self, rank: int, size: int, device: torch.device, *, launcher: str = "") -> None:
        self.rank, self.size, self.device, self.launcher = rank, size, device, launcher
        self.stop_requested = False
        """True if this process was asked to stop; the next `start_all_reduce` tells the others."""
        self.stop_agreed = False
        """True if any process was asked to stop; becomes True after the same update on all processes."""
        self._on_cpu = device.type == "cpu"
        self._pending_stop: tuple[Tensor, Any] | None = None

    @property
    def is_first(self) -> bool:
        """True for rank 0, which writes the run's files."""
        return self.rank == 0

    def start_all_reduce(self, numbers: Sequence[Tensor | float]) -> Callable[[], Numbers]:
        """Start summing numbers over all processes; return a function that waits for the sums.

        Args:
            numbers: 0-d tensors or floats, the same quantities in the same order on every process. Sent as float64.

        Returns:
            A function that returns the sums: floats if the device is the CPU, else tensors on the device.
        """
        if self.size == 1:
            return lambda: list(numbers)
        return self._start_on_cpu(numbers, ()) if self._on_cpu else self._start_on_device(numbers)

    def _start_on_cpu(self, numbers: Sequence[Tensor | float], tensors: Sequence[Tensor]) -> Callable[[], Numbers]:
        """Gather all numbers and sum them locally: gloo's all-reduce takes twice as many rounds for so few numbers."""
        vector = _float64_vector(self.append_stop_request(numbers), self.device)
        message = _flatten([vector, *tensors]) if tensors else vector
        gathered = [torch.empty_like(message) for _ in range(self.size)]
        work = _run_collective(lambda: cast("dist.Work", dist.all_gather(gathered, message, async_op=True)))

        def wait() -> Numbers:
            _run_collective(work.wait)
            if tensors and not self.is_first:
                _unflatten(tensors, gathered[0][vector.nbytes :])
            sums, *others = [each[: vector.nbytes].view(torch.float64) for each in gathered] if tensors else gathered
            for other in others:  # every process adds in the same order, so that the sums are bitwise equal
                sums += other
            return self.pop_stop_request(sums.tolist())

        return wait

    def _start_on_device(self, numbers: Sequence[Tensor | float]) -> Callable[[], Numbers]:
        vector = _float64_vector(numbers, self.device)
        work = _run_collective(lambda: _start_all_reduce(vector))

        def wait() -> Numbers:
            _run_collective(work.wait)
            self._exchange_stop_requests()
            return list(vector.unbind())

        return wait

    def append_stop_request(self, numbers: Sequence[Tensor | float]) -> Numbers:
        """Return the numbers, followed by 1.0 if this process was asked to stop, else 0.0."""
        return [*numbers, float(self.stop_requested)]

    def pop_stop_request(self, sums: Sequence[float]) -> Numbers:
        """Return the sums without the last one, which is positive if any process was asked to stop: record that."""
        self.stop_agreed |= sums[-1] > 0
        return list(sums[:-1])

    def all_reduce_sum(self, numbers: Sequence[Tensor | float]) -> Numbers:
        """Sum numbers over all processes."""
        return self.start_all_reduce(numbers)()

    def all_reduce_sum_and_broadcast(self, numbers: Sequence[Tensor | float], tensors: Sequence[Tensor]) -> Numbers:
        """Call `all_reduce_sum` and `broadcast`, combined into one message if the tensors are small and on the CPU."""
        nbytes = sum(tensor.nbytes for tensor in tensors) * self.size
        if self._on_cpu and self.size > 1 and nbytes <= MAX_COMBINED_BYTES:
            with torch.no_grad():
                return self._start_on_cpu(numbers, tensors)()
        self.broadcast(tensors)
        return self.all_reduce_sum(numbers)

    def _exchange_stop_requests(self) -> None:
        """Share stop requests over the CPU, one update late, so that no process waits for its GPU."""
        if self._pending_stop is not None:
            stops, work = self._pending_stop
            _run_collective(work.wait)
            self.stop_agreed |= bool(stops)
        request = torch.tensor([float(self.stop_requested)])
        self._pending_stop = request, _run_collective(lambda: _start_all_reduce(request))

    def any_rank_stops(self, stop_requested: bool) -> bool:
        """Return whether any process was asked to stop; called between two epochs, waits for all processes."""
        self.stop_agreed = any(self.all_gather_object(stop_requested))
        return self.stop_agreed

    def all_gather_object(self, value: T) -> list[T]:
        """Return every process's value, by rank. Values are pickled; tensors in them should be on the CPU."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        _run_collective(lambda: dist.all_gather_object(values, value))
        return values

    def broadcast_object(self, value: T) -> T:
        """Return the first process's value on every process; the values of the others are ignored."""
        if self.size == 1:
            return value
        objects: list[Any] = [value if self.is_first else None]
        _run_collective(lambda: dist.broadcast_object_list(objects, src=0, device=self.device))
        return objects[0]

    def run_collective(self, collective: Callable[[], T]) -> T:
        """Call a function that communicates with the other processes.

        Raises:
            ProcessLost: one of the processes is gone.
        """
        return _run_collective(collective)

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Copy the first process's values into the tensors of the others, in place; tensors may differ in dtype."""
        if self.size > 1 and tensors:
            self._broadcast_chunks(tensors)

    @torch.no_grad()
    def _broadcast_chunks(self, tensors: Sequence[Tensor]) -> None:
        for chunk in _in_chunks(tensors):
            flat = _flatten([tensor.to(self.device) for tensor in chunk])
            _run_collective(partial(_broadcast, flat))
            if not self.is_first:
                _unflatten(chunk, flat)


SINGLE_PROCESS: Final = Processes(0, 1, torch.device("cpu"))


def join_processes(
    device: torch.device, *, timeout_s: float = TIMEOUT_S, keepalive_timeout_s: float = KEEPALIVE_TIMEOUT_S
) -> Processes:
    """Connect to the other processes of this run, if a launcher has started several.

    A process group that the program has created is used unchanged. A group created here exists until the process ends.

    Args:
        device: device of this process.
        timeout_s: seconds to wait for the others, now and in every collective.
        keepalive_timeout_s: seconds without an answer after which another machine counts as lost.

    Raises:
        InvalidConfig: the launcher's variables contradict one another; the program's group has no CPU backend; or two
            processes share one GPU.
        ProcessLost: the others do not connect.
    """
    if not dist.is_available():
        return SINGLE_PROCESS
    if dist.is_initialized():
        size, backends = dist.get_world_size(), dist.get_backend_config()
        if size > 1 and "cpu:" not in backends:
            raise InvalidConfig(
                f"The program has created its process group for {backends} only.",
                why="Stop requests are exchanged between CPUs, so that no process has to wait for its GPU.",
                fix='Create it with init_process_group("cpu:gloo,cuda:nccl"), or leave it to the Trainer.',
            )
        return Processes(dist.get_rank(), size, device, launcher="the program")
    info = read_launch_info()
    if info is None or info.size == 1:
        return SINGLE_PROCESS
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    init_process_group(info, backend, timeout_s=timeout_s, keepalive_timeout_s=keepalive_timeout_s)
    atexit.register(_destroy_process_group)
    processes = Processes(info.rank, info.size, device, launcher=info.launcher)
    if device.type == "cuda":
        _refuse_shared_gpu(processes, str(torch.cuda.get_device_properties(device).uuid))
    return processes


def _refuse_shared_gpu(processes: Processes, own_uuid: str) -> None:
    """Raise on every process if two processes use the same GPU."""
    gpus = processes.all_gather_object(own_uuid)
    for rank, uuid in enumerate(gpus):
        if (other := gpus.index(uuid)) != rank:
            raise InvalidConfig(
                f"Processes {other} and {rank} share one GPU: {uuid}.",
                why="NCCL, which sums the gradients of GPUs, needs one process per GPU.",
                fix="Start one process per GPU, or train on the CPU: --device cpu.",
            )


def require_single_process(operation: str) -> None:
    """Raise if this process is one of several, for an operation that needs a single process.

    Args:
        operation: subject of the message: "A profile".

    Raises:
        InvalidConfig: this process is one of several.
    """
    if dist.is_available() and dist.is_initialized():
        size = dist.get_world_size()
    else:
        info = _launch_info()
        size = info.size if info is not None else 1
    if size > 1:
        raise InvalidConfig(
            f"{operation} needs a single process, but this is one of {size}.",
            why="Each process would run it separately and disturb the others.",
            fix="Start it without torchrun or srun; the result for one process is valid for each of several.",
        )


def local_device(name: str) -> str:
    """Return the device of this process: for "auto" or "cuda", the GPU with the process's local rank.

    A process that sees a single GPU uses it, whatever its local rank: with ``srun --gpus-per-task=1`` each task sees
    only its own GPU. `join_processes` checks whether another process uses the same GPU.
    """
    info = _launch_info()
    if info is None or name not in ("auto", "cuda") or not torch.cuda.is_available():
        return name
    gpus = torch.cuda.device_count()
    gpu = 0 if gpus == 1 else info.local_rank
    if gpu >= gpus:
        raise InvalidConfig(
            f"Process {info.local_rank} of {info.local_size} on this machine has no GPU: there are only {gpus} GPUs.",
            fix=f"Start {gpus} processes per machine, or train on the CPU: --device cpu. Under srun, every task has to "
            "see all GPUs of its machine, or one of its own: --gpus-per-node, or --gpus-per-task=1.",
        )
    torch.cuda.set_device(gpu)
    return f"cuda:{gpu}"


def _launch_info() -> LaunchInfo | None:
    """Return how a launcher has started this process; None for a torch without torch.distributed."""
    return read_launch_info() if dist.is_available() else None


def _destroy_process_group() -> None:
    if dist.is_initialized():
        gc.collect()  # objects that refer to the group, such as a DDP module, have to be freed first
        dist.destroy_process_group()


def _start_all_reduce(vector: Tensor) -> dist.Work:
    return cast("dist.Work", dist.all_reduce(vector, async_op=True))


def _broadcast(tensor: Tensor) -> None:
    dist.broadcast(tensor, src=0)


def _flatten(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1).view(torch.uint8) for tensor in tensors])


def _unflatten(tensors: Sequence[Tensor], flat: Tensor) -> None:
    for tensor, values in zip(tensors, flat.split([tensor.nbytes for tensor in tensors]), strict=True):
        tensor.copy_(values.clone().view(tensor.dtype).view(tensor.shape))  # clone() aligns the memory for view()


def _in_chunks(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield lists of tensors of about `CHUNK_BYTES` each, in order, without empty tensors."""
    chunk, size = list[Tensor](), 0
    for tensor in tensors:
        if not tensor.numel():
            continue
        if chunk and size + tensor.nbytes > CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
        chunk.append(tensor)
        size += tensor.nbytes
    if chunk:
        yield chunk


def _float64_vector(values: Sequence[Tensor | float], device: torch.device) -> Tensor:
    floats = [0.0 if isinstance(value, Tensor) else value for value in values]
    vector = torch.tensor(floats, dtype=torch.float64).to(device, non_blocking=True)
    for index, value in enumerate(values):
        if isinstance(value, Tensor):
            vector[index] = value.detach()
    return vector


def _run_collective(collective: Callable[[], T]) -> T:
    """Run a collective; raise ProcessLost for the RuntimeError with which torch reports a closed connection."""
    try:
        return collective()
    except (RuntimeError, dist.DistBackendError) as error:
        raise _process_lost(error) from error


def as_process_lost(error: BaseException, processes: Processes) -> ProcessLost | None:
    """Return a ProcessLost if an error of the collectives of DDP or FSDP means that a process is gone.

    Args:
        error: the exception that ended a window.
        processes: the processes of the run.

    Returns:
        None for any other error.
    """
    if processes.size == 1 or not isinstance(error, RuntimeError):
        return None
    return _process_lost(error) if isinstance(error, dist.DistError) or _BACKENDS.search(str(error)) else None


def _process_lost(error: RuntimeError) -> ProcessLost:
    return ProcessLost(
        "Another process of this run is gone, or cannot be reached.",
        why=_NOISE.sub("", str(error).split("\n", 1)[0]),
        fix="Read the last output of the other processes. The same command resumes from the newest checkpoint.",
    )
