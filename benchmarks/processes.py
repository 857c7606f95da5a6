"""Measure the time per update of two processes on gloo: trueloop, and hand-written loops over the same PyTorch engines.

Both processes run the same systems in the same order, and the times are those of the first process. All systems train
on the same halves of the same batches. The goal is relative to the hand-written loop that measures the norm, clips,
follows a schedule and records, as trueloop does; trueloop also sums the sample counts, which makes uneven halves exact.
The bare loop does none of this and shows the cost of all of it. Messages are counted separately, and a small message is
timed: on small models, communication takes most of an update.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from measure import Batches, Cost, SideBySide, Spread, console, interleave, options, table, verdict, write
from systems.task import Journal, cosine, fused_adamw
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.profiler import ProfilerActivity, profile
from workloads import Batch, cnn, cnn_batches, gpt, gpt_batches, mlp, mlp_batches

from trueloop import ParallelConfig, TrainConfig, Trainer

PROCESSES = 2
GOAL = 1.05
TRUELOOP, BARE, BY_HAND = "trueloop", "bare five lines", "by hand: clipped, scheduled, recorded"
ENGINES = {"ddp": "DistributedDataParallel", "fsdp": "fully_shard"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A model, its batches, two of which make an update, and the duration of the measurement."""

    model: Callable[[], nn.Module]
    batches: list[Batch]
    updates: int
    warm: int
    rounds: int


def workloads(*, quick: bool) -> dict[str, Workload]:
    """Return the workloads; with ``quick``, each takes a few seconds."""
    divisor = 3 if quick else 1
    rounds = 3 if quick else 15
    return {
        "mlp": Workload(model=mlp, batches=mlp_batches(), updates=240 // divisor, warm=20, rounds=rounds),
        "cnn": Workload(model=cnn, batches=cnn_batches(), updates=90 // divisor, warm=10, rounds=rounds),
        "gpt": Workload(model=gpt, batches=gpt_batches(), updates=24 // divisor, warm=3, rounds=rounds),
    }


def wrap_model(model: nn.Module, engine: str) -> nn.Module:
    """Wrap the model in torch's engine, as its tutorials do."""
    if engine == "ddp":
        return DistributedDataParallel(model)
    for block in getattr(model, "blocks", ()):
        fully_shard(block)
    return fully_shard(model)


def by_hand(load: Workload, engine: str, *, production: bool) -> Cost:
    """Train with a hand-written loop over the wrapped model; each process takes every second batch."""
    model, criterion = load.model(), nn.CrossEntropyLoss()
    wrapped = wrap_model(model, engine)
    optimizer = fused_adamw(model)
    schedule, journal = cosine(optimizer, load.updates), Journal()
    batches = Batches(load.batches, PROCESSES * load.updates)
    for inputs, targets in islice(batches, dist.get_rank(), None, PROCESSES):
        optimizer.zero_grad(set_to_none=True)
        loss = criterion(wrapped(inputs), targets)
        loss.backward()
        if production:
            norm = clip_grad_norm_(model.parameters(), 1.0)
            full_norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
            journal.add(loss.detach(), full_norm, optimizer.param_groups[0]["lr"])
        optimizer.step()
        if production:
            schedule.step()
    return per_update(batches, load)


def by_trueloop(load: Workload, engine: str) -> Cost:
    """Train with the Trainer on the same batches."""
    batches = Batches(load.batches, PROCESSES * load.updates)
    config = TrainConfig(epochs=1, device="cpu", parallel=ParallelConfig(engine=engine), clip=1.0)
    trainer = Trainer(model=load.model(), objective=nn.CrossEntropyLoss(), config=config, optimizer=fused_adamw_of)
    trainer.fit(batches, accumulate=PROCESSES)
    return per_update(batches, load)


def fused_adamw_of(parameters: Any) -> torch.optim.Optimizer:
    """Create the same optimizer as in the hand-written loops."""
    return torch.optim.AdamW(parameters, lr=1e-3, fused=True)


def per_update(batches: Batches, load: Workload) -> Cost:
    """Convert the cost of a batch to the cost of an update, which reads one batch per process."""
    cost = batches.clock.per_tick(PROCESSES * load.warm)
    return Cost(PROCESSES * cost.wall, PROCESSES * cost.cpu)


def messages(system: Callable[[Workload, str], Cost], load: Workload, engine: str) -> float:
    """Return the number of collectives per update, from the difference between runs of 6 and 12 updates."""
    counts: list[int] = []
    for updates in (6, 12):  # during the first three updates, DDP is still set up
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            system(replace(load, updates=updates, warm=0), engine)
        counts.append(sum(event.count for event in profiler.key_averages() if event.key.startswith("gloo:")))
    return (counts[1] - counts[0]) / 6


def small_message() -> Cost:
    """Time an all-gather of four numbers per process."""
    numbers = torch.zeros(4, dtype=torch.float64)
    gathered = [torch.zeros_like(numbers) for _ in range(PROCESSES)]
    times: list[float] = []
    for _ in range(500):
        start = time.perf_counter()
        dist.all_gather(gathered, numbers)
        times.append(time.perf_counter() - start)
    return Cost(statistics.median(times), 0.0)


def run_process(rank: int, port: int, pipe: Any, *, quick: bool) -> None:
    """Measure everything as one of the processes."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(PROCESSES))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found: dict[str, Any] = {"message": [small_message() for _ in range(5)]}
    systems = {
        BARE: partial(by_hand, production=False),
        BY_HAND: partial(by_hand, production=True),
        TRUELOOP: by_trueloop,
    }
    for name, load in workloads(quick=quick).items():
        for engine in ENGINES:
            runs = {system: partial(run, load, engine) for system, run in systems.items()}
            times = interleave(runs, load.rounds)
            message_counts = {system: messages(run, load, engine) for system, run in systems.items()}
            found[f"{name} {engine}"] = (dict(times.costs), message_counts)
    pipe.send(found)
    dist.barrier()
    dist.destroy_process_group()


def measure(*, quick: bool) -> dict[str, Any]:
    """Start the processes and return the results of the first one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe() for _ in range(PROCESSES)]
    processes = [
        context.Process(target=run_process, args=(rank, port, pipe[1]), kwargs={"quick": quick})
        for rank, pipe in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    results = [receiver.recv() for receiver, _ in pipes]
    for process in processes:
        process.join()
    return results[0]


def content(found: SideBySide, message_counts: Mapping[str, float]) -> Mapping[str, Any]:
    """Return the figures for the result file."""
    return {
        system: {
            "messages_per_update": message_counts[system],
            "seconds_per_update": found.cost(system),
            "wall_ratio_to": {reference: found.ratio(system, reference) for reference in (BARE, BY_HAND)},
            "cpu_ratio_to": {reference: found.ratio(system, reference, "cpu") for reference in (BARE, BY_HAND)},
        }
        for system in found.costs
    }


def main() -> None:
    """Time all workloads over both engines."""
    quick = options(__doc__).quick
    found = measure(quick=quick)
    message = Spread.of([cost.wall for cost in found.pop("message")])
    sides = {name: (SideBySide(costs=costs), message_counts) for name, (costs, message_counts) in found.items()}
    for name, (side, message_counts) in sides.items():
        rows = [
            [system, f"{message_counts[system]:.1f}", f"{side.cost(system).median * 1e6:,.0f}",
             str(side.ratio(system, BARE)),
             str(side.ratio(system, BY_HAND))]
            for system in side.costs
        ]  # fmt: skip
        columns = ["system", "messages per update", "µs per update", f"/ {BARE}", f"/ {BY_HAND}"]
        table(f"{name}, {PROCESSES} processes", columns, rows)
    console.print(f"a message of four numbers: {message.median * 1e6:.0f} µs")
    for name, (side, _) in sides.items():
        ratio, bare = side.ratio(TRUELOOP, BY_HAND), side.ratio(TRUELOOP, BARE)
        console.print(
            f"{verdict(ratio.median, GOAL)}  {name}: trueloop / the same work by hand = {ratio}, goal {GOAL:.2f}; "
            f"/ {BARE} = {bare}"
        )
    rounds = {name: len(side.costs[TRUELOOP]) for name, (side, _) in sides.items()}
    settings = {"processes": PROCESSES, "backend": "gloo", "rounds": rounds}
    contents = {name: content(side, message_counts) for name, (side, message_counts) in sides.items()}
    write("processes", {"settings": settings, "small_message_s": message, "found": contents}, quick=quick)


if __name__ == "__main__":
    main()
