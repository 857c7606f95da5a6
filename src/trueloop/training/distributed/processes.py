"""The processes of one run, and the few words they exchange beside the gradients.

Everything that leads to a collective is decided alike on every process: by what all know (the epoch's cuts, the global
norm), or by asking here. Who decided alone would wait for the others for ever.
"""

from __future__ import annotations

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
from trueloop.training.distributed.launcher_env import read_launch_info
from trueloop.training.distributed.rendezvous import KEEPALIVE_TIMEOUT_S, TIMEOUT_S, init_process_group

CHUNK_BYTES: Final = 2**28
"""Bytes that travel at a time, where much is to be copied: they are held twice meanwhile."""
MAX_COMBINED_BYTES: Final = 2**16
"""Bytes from all processes together that travel with other numbers, where a message of their own would take longer."""
_BACKENDS: Final = re.compile(r"gloo/transport|NCCL")  # in the message of what is a plain RuntimeError
_NOISE: Final = re.compile(r"^\[[^\]]*\] *|(?<=\.) This is typically caused by .*")  # a line of its source, and advice

T = TypeVar("T")
Numbers = list[Tensor | float]


class Processes:
    """This process among those of the run. A single one exchanges nothing and never touches torch.distributed.

    Args:
        rank: this process, from 0; the first one writes what the run leaves behind.
        size: how many there are.
        device: where their tensors are.
        launcher: what launched them, for people.
    """

    def __init__(self, rank: int, size: int, device: torch.device, *, launcher: str = "") -> None:
        self.rank, self.size, self.device, self.launcher = rank, size, device, launcher
        self.stop_requested = False
        """This process has been told to stop; it is passed on with the next `start_all_reduce`."""
        self.stop_agreed = False
        """Some process has been told to stop, and all know it since the same update."""
        self._on_host = device.type == "cpu"
        self._asked: tuple[Tensor, Any] | None = None

    @property
    def is_first(self) -> bool:
        """True for the process that writes."""
        return self.rank == 0

    def start_all_reduce(self, numbers: Sequence[Tensor | float]) -> Callable[[], Numbers]:
        """Add numbers up over all processes; return at once, with what waits for the sums.

        Args:
            numbers: as many on every process, in the same order; 0-d tensors or floats. Travels as float64.

        Returns:
            A function that returns the sums: floats on the CPU, elsewhere tensors left on the device.
        """
        if self.size == 1:
            return lambda: list(numbers)
        return self._start_on_host(numbers, ()) if self._on_host else self._start_on_device(numbers)

    def _start_on_host(self, numbers: Sequence[Tensor | float], little: Sequence[Tensor]) -> Callable[[], Numbers]:
        """Have what everybody says and add it up here: gloo's all-reduce takes twice as many turns for so few."""
        vector = _vector(self.append_stop_request(numbers), self.device)
        message = _flatten([vector, *little]) if little else vector
        everybody = [torch.empty_like(message) for _ in range(self.size)]
        work = _run_collective(lambda: cast("dist.Work", dist.all_gather(everybody, message, async_op=True)))

        def wait() -> Numbers:
            _run_collective(work.wait)
            if little and not self.is_first:
                _unflatten(little, everybody[0][vector.nbytes :])
            sums, *others = [each[: vector.nbytes].view(torch.float64) for each in everybody] if little else everybody
            for theirs in others:  # in this order on every process: what follows from the sums is decided alike
                sums += theirs
            return self.pop_stop_request(sums.tolist())

        return wait

    def _start_on_device(self, numbers: Sequence[Tensor | float]) -> Callable[[], Numbers]:
        vector = _vector(numbers, self.device)
        work = _run_collective(lambda: _start_all_reduce(vector))

        def wait() -> Numbers:
            _run_collective(work.wait)
            self._exchange_stop()
            return list(vector.unbind())

        return wait

    def append_stop_request(self, numbers: Sequence[Tensor | float]) -> Numbers:
        """Return the numbers to be added up, and behind them whether this process has been told to stop."""
        return [*numbers, float(self.stop_requested)]

    def pop_stop_request(self, sums: Sequence[float]) -> Numbers:
        """Return the sums of numbers, after noting how many processes have been told to stop."""
        self.stop_agreed |= sums[-1] > 0
        return list(sums[:-1])

    def all_reduce_sum(self, numbers: Sequence[Tensor | float]) -> Numbers:
        """Add numbers up over all processes."""
        return self.start_all_reduce(numbers)()

    def all_reduce_sum_and_broadcast(self, numbers: Sequence[Tensor | float], tensors: Sequence[Tensor]) -> Numbers:
        """Do what `all_reduce_sum` and `broadcast` do, in one message where the tensors are small and on the host."""
        if self._on_host and self.size > 1 and sum(tensor.nbytes for tensor in tensors) * self.size <= MAX_COMBINED_BYTES:
            with torch.no_grad():
                return self._start_on_host(numbers, tensors)()
        self.broadcast(tensors)
        return self.all_reduce_sum(numbers)

    def _exchange_stop(self) -> None:
        """Pass the wish to stop on between the hosts, one update late, so that no device is waited for."""
        if self._asked is not None:
            stops, work = self._asked
            _run_collective(work.wait)
            self.stop_agreed |= bool(stops)
        wish = torch.tensor([float(self.stop_requested)])
        self._asked = wish, _run_collective(lambda: _start_all_reduce(wish))

    def any_rank_stops(self, wanted: bool) -> bool:
        """Ask all processes whether they have been told to stop, and wait for their answers; between two epochs."""
        self.stop_agreed = any(self.all_gather_object(wanted))
        return self.stop_agreed

    def all_gather_object(self, thing: T) -> list[T]:
        """Return every process's thing, by rank. It is pickled; tensors in it should be on the host."""
        if self.size == 1:
            return [thing]
        things: list[Any] = [None] * self.size
        _run_collective(lambda: dist.all_gather_object(things, thing))
        return things

    def broadcast_object(self, thing: T) -> T:
        """Return the first process's thing on every process; what the others give is not looked at."""
        if self.size == 1:
            return thing
        box: list[Any] = [thing if self.is_first else None]
        _run_collective(lambda: dist.broadcast_object_list(box, src=0, device=self.device))
        return box[0]

    def run_collective(self, exchange: Callable[[], T]) -> T:
        """Call what exchanges things with the others.

        Raises:
            ProcessLost: one of them has gone.
        """
        return _run_collective(exchange)

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Copy the first process's values into every other's tensors, in place; of any dtypes, many at a time."""
        if self.size > 1 and tensors:
            self._broadcast_chunks(tensors)

    @torch.no_grad()
    def _broadcast_chunks(self, tensors: Sequence[Tensor]) -> None:
        for some in _in_chunks(tensors):
            flat = _flatten([tensor.to(self.device) for tensor in some])
            _run_collective(partial(_broadcast, flat))
            if not self.is_first:
                _unflatten(some, flat)


SINGLE_PROCESS: Final = Processes(0, 1, torch.device("cpu"))


def join_processes(device: torch.device, *, timeout_s: float = TIMEOUT_S, keepalive_timeout_s: float = KEEPALIVE_TIMEOUT_S) -> Processes:
    """Meet the other processes of this run, where a launcher has started some.

    A group that the program itself has made is used as it is. One that is made here stays until the interpreter ends.

    Args:
        device: of this process.
        timeout_s: how long to wait for the others, now and in every exchange.
        keepalive_timeout_s: how long another machine may show no sign of life.

    Raises:
        InvalidConfig: the launcher's variables contradict one another; the program's group has no way for numbers on
            the host; or two processes have one GPU.
        ProcessLost: the others do not come.
    """
    if not dist.is_available():
        return SINGLE_PROCESS
    if dist.is_initialized():
        size, backends = dist.get_world_size(), dist.get_backend_config()
        if size > 1 and "cpu:" not in backends:
            raise InvalidConfig(
                f"The program has made its group of processes for {backends} only.",
                why="Hosts tell one another who has been told to stop, and do not wait for a GPU with that.",
                fix='Make it with init_process_group("cpu:gloo,cuda:nccl"), or leave it to the Trainer.',
            )
        return Processes(dist.get_rank(), size, device, launcher="the program")
    here = read_launch_info()
    if here is None or here.size == 1:
        return SINGLE_PROCESS
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    init_process_group(here, backend, timeout_s=timeout_s, keepalive_timeout_s=keepalive_timeout_s)
    atexit.register(_destroy_process_group)
    processes = Processes(here.rank, here.size, device, launcher=here.launcher)
    if device.type == "cuda":
        _refuse_shared_gpu(processes, str(torch.cuda.get_device_properties(device).uuid))
    return processes


def _refuse_shared_gpu(processes: Processes, gpu: str) -> None:
    """Refuse two processes on one GPU, alike on every process: each that sees a single one takes that for its own."""
    gpus = processes.all_gather_object(gpu)
    for rank, each in enumerate(gpus):
        if (other := gpus.index(each)) != rank:
            raise InvalidConfig(
                f"Processes {other} and {rank} have one GPU between them: {each}.",
                why="NCCL, by which GPUs add their gradients up, takes one process for each.",
                fix="Start one process per GPU, or train on the CPU: --device cpu.",
            )


def require_single_process(what: str) -> None:
    """Refuse to do in each of several processes what is one process's to do.

    Args:
        what: "A profile".

    Raises:
        InvalidConfig: this process is one of several.
    """
    here = read_launch_info() if dist.is_available() else None
    size = dist.get_world_size() if dist.is_available() and dist.is_initialized() else here.size if here else 1
    if size > 1:
        raise InvalidConfig(
            f"{what} is of one process, but this is one of {size}.",
            why="Each of them would do it by itself, in the others' way.",
            fix="Start it without torchrun or srun; what it says of one process holds for each.",
        )


def local_device(name: str) -> str:
    """Return the device of this process: its own GPU where "auto" or "cuda" stands for several.

    One that sees a single GPU takes it, whatever its number: ``srun --gpus-per-task=1`` shows each task its own only.
    Whether another process takes the same is seen when they meet.
    """
    here = read_launch_info() if dist.is_available() else None
    if here is None or name not in ("auto", "cuda") or not torch.cuda.is_available():
        return name
    gpus = torch.cuda.device_count()
    own = 0 if gpus == 1 else here.local_rank
    if own >= gpus:
        raise InvalidConfig(
            f"Process {here.local_rank} of {here.local_size} on this machine has no GPU: there are {gpus}.",
            fix=f"Start {gpus} processes per machine, or train on the CPU: --device cpu. Under srun, every task has to "
            "see all GPUs of its machine, or one of its own: --gpus-per-node, or --gpus-per-task=1.",
        )
    torch.cuda.set_device(own)
    return f"cuda:{own}"


def _destroy_process_group() -> None:
    if dist.is_initialized():
        gc.collect()  # what hangs on the group, such as DDP, has to go before it does
        dist.destroy_process_group()


def _start_all_reduce(vector: Tensor) -> dist.Work:
    return cast("dist.Work", dist.all_reduce(vector, async_op=True))


def _broadcast(tensor: Tensor) -> None:
    dist.broadcast(tensor, src=0)


def _flatten(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1).view(torch.uint8) for tensor in tensors])


def _unflatten(tensors: Sequence[Tensor], flat: Tensor) -> None:
    for tensor, values in zip(tensors, flat.split([tensor.nbytes for tensor in tensors]), strict=True):
        tensor.copy_(values.clone().view(tensor.dtype).view(tensor.shape))  # cloned: its start is aligned


def _in_chunks(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield tensors together that make up about `CHUNK_BYTES`, in order; those that have any elements."""
    parcel, size = list[Tensor](), 0
    for tensor in tensors:
        if not tensor.numel():
            continue
        if parcel and size + tensor.nbytes > CHUNK_BYTES:
            yield parcel
            parcel, size = [], 0
        parcel.append(tensor)
        size += tensor.nbytes
    if parcel:
        yield parcel


def _vector(values: Sequence[Tensor | float], device: torch.device) -> Tensor:
    known = [0.0 if isinstance(value, Tensor) else value for value in values]
    vector = torch.tensor(known, dtype=torch.float64).to(device, non_blocking=True)
    for place, value in enumerate(values):
        if isinstance(value, Tensor):
            vector[place] = value.detach()
    return vector


def _run_collective(exchange: Callable[[], T]) -> T:
    """Say in words that another process has gone, where torch only says that a connection was closed."""
    try:
        return exchange()
    except (RuntimeError, dist.DistBackendError) as error:
        raise _process_lost(error) from error


def as_process_lost(error: BaseException, processes: Processes) -> ProcessLost | None:
    """Say in words that another process has gone, where DDP or FSDP met it in their own exchanges.

    Args:
        error: that ended a window.
        processes: of the run.

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
        fix="Look at what the other processes said last. The same command goes on from the newest checkpoint.",
    )
