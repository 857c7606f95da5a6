"""Time per update of two processes on gloo: trueloop next to loops written by hand over the same PyTorch engines.

Both processes run the same systems in the same order, and the first one's clock is read. All train on the same halves
of the same batches. The goal is relative to the loop by hand that measures the norm, clips, keeps a schedule and
records, as trueloop does, which also adds the counts up: that makes uneven halves exact. The bare loop does none of
this; it shows what all of it costs. Messages are counted apart, and a small one is timed: on small models they are
what an update is made of.
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
    """A model, batches of which two make an update, and how long to look."""

    model: Callable[[], nn.Module]
    batches: list[Batch]
    updates: int
    warm: int
    rounds: int


def workloads(*, quick: bool) -> dict[str, Workload]:
    """List the workloads; quick looks at each for a few seconds."""
    few = 3 if quick else 1
    rounds = 3 if quick else 15
    return {
        "mlp": Workload(model=mlp, batches=mlp_batches(), updates=240 // few, warm=20, rounds=rounds),
        "cnn": Workload(model=cnn, batches=cnn_batches(), updates=90 // few, warm=10, rounds=rounds),
        "gpt": Workload(model=gpt, batches=gpt_batches(), updates=24 // few, warm=3, rounds=rounds),
    }


def wrapped(model: nn.Module, engine: str) -> nn.Module:
    """Hand the model to torch's engine, as its tutorials do."""
    if engine == "ddp":
        return DistributedDataParallel(model)
    for block in getattr(model, "blocks", ()):
        fully_shard(block)
    return fully_shard(model)


def edits(load: Workload, engine: str, *, production: bool) -> Cost:
    """Train with a loop over the wrapped model: each process on its own batch of every two."""
    model, criterion = load.model(), nn.CrossEntropyLoss()
    called = wrapped(model, engine)
    optimizer = fused_adamw(model)
    schedule, journal = cosine(optimizer, load.updates), Journal()
    batches = Batches(load.batches, PROCESSES * load.updates)
    for inputs, targets in islice(batches, dist.get_rank(), None, PROCESSES):
        optimizer.zero_grad(set_to_none=True)
        loss = criterion(called(inputs), targets)
        loss.backward()
        if production:
            norm = clip_grad_norm_(model.parameters(), 1.0)
            whole = norm.full_tensor() if isinstance(norm, DTensor) else norm
            journal.add(loss.detach(), whole, optimizer.param_groups[0]["lr"])
        optimizer.step()
        if production:
            schedule.step()
    return per_update(batches, load)


def by_trueloop(load: Workload, engine: str) -> Cost:
    """Train with the Trainer, dealt the same batches."""
    batches = Batches(load.batches, PROCESSES * load.updates)
    config = TrainConfig(epochs=1, device="cpu", parallel=ParallelConfig(engine=engine), clip=1.0)
    trainer = Trainer(model=load.model(), objective=nn.CrossEntropyLoss(), config=config, optimizer=fused_adamw_of)
    trainer.fit(batches, accumulate=PROCESSES)
    return per_update(batches, load)


def fused_adamw_of(parameters: Any) -> torch.optim.Optimizer:
    """Build the optimizer that the loops by hand have."""
    return torch.optim.AdamW(parameters, lr=1e-3, fused=True)


def per_update(batches: Batches, load: Workload) -> Cost:
    """Turn the time from batch to batch into that of an update, which draws one for each process."""
    cost = batches.clock.per_tick(PROCESSES * load.warm)
    return Cost(PROCESSES * cost.wall, PROCESSES * cost.cpu)


def messages(system: Callable[[Workload, str], Cost], load: Workload, engine: str) -> float:
    """Count the collectives of an update: those that six more updates make."""
    counts: list[int] = []
    for updates in (6, 12):  # in the first three, DDP is still setting up
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            system(replace(load, updates=updates, warm=0), engine)
        counts.append(sum(event.count for event in seen.key_averages() if event.key.startswith("gloo:")))
    return (counts[1] - counts[0]) / 6


def small_message() -> Cost:
    """Time a message of four numbers from each process to each."""
    numbers = torch.zeros(4, dtype=torch.float64)
    everybody = [torch.zeros_like(numbers) for _ in range(PROCESSES)]
    times: list[float] = []
    for _ in range(500):
        start = time.perf_counter()
        dist.all_gather(everybody, numbers)
        times.append(time.perf_counter() - start)
    return Cost(statistics.median(times), 0.0)


def life(rank: int, port: int, pipe: Any, *, quick: bool) -> None:
    """Be one of the processes."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(PROCESSES))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found: dict[str, Any] = {"message": [small_message() for _ in range(5)]}
    systems = {
        BARE: partial(edits, production=False),
        BY_HAND: partial(edits, production=True),
        TRUELOOP: by_trueloop,
    }
    for name, load in workloads(quick=quick).items():
        for engine in ENGINES:
            runs = {system: partial(run, load, engine) for system, run in systems.items()}
            side = interleave(runs, load.rounds)
            said = {system: messages(run, load, engine) for system, run in systems.items()}
            found[f"{name} {engine}"] = (dict(side.costs), said)
    pipe.send(found)
    dist.barrier()
    dist.destroy_process_group()


def measure(*, quick: bool) -> dict[str, Any]:
    """Start the processes and return what the first one found."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe() for _ in range(PROCESSES)]
    lives = [
        context.Process(target=life, args=(rank, port, pipe[1]), kwargs={"quick": quick})
        for rank, pipe in enumerate(pipes)
    ]
    for each in lives:
        each.start()
    answers = [here.recv() for here, _ in pipes]
    for each in lives:
        each.join()
    return answers[0]


def content(found: SideBySide, said: Mapping[str, float]) -> Mapping[str, Any]:
    """Return what goes into the JSON."""
    return {
        system: {
            "messages_per_update": said[system],
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
    sides = {name: (SideBySide(costs=costs), said) for name, (costs, said) in found.items()}
    for name, (side, said) in sides.items():
        rows = [
            [system, f"{said[system]:.1f}", f"{side.cost(system).median * 1e6:,.0f}", str(side.ratio(system, BARE)),
             str(side.ratio(system, BY_HAND))]
            for system in side.costs
        ]  # fmt: skip
        columns = ["system", "messages per update", "µs per update", f"/ {BARE}", f"/ {BY_HAND}"]
        table(f"{name}, {PROCESSES} processes", columns, rows)
    console.print(f"a message of four numbers: {message.median * 1e6:.0f} µs")
    for name, (side, _) in sides.items():
        ratio, bare = side.ratio(TRUELOOP, BY_HAND), side.ratio(TRUELOOP, BARE)
        console.print(
            f"{verdict(ratio.median, GOAL)}  {name}: trueloop / what does as much by hand = {ratio}, goal {GOAL:.2f}; "
            f"/ {BARE} = {bare}"
        )
    rounds = {name: len(side.costs[TRUELOOP]) for name, (side, _) in sides.items()}
    settings = {"processes": PROCESSES, "backend": "gloo", "rounds": rounds}
    contents = {name: content(side, said) for name, (side, said) in sides.items()}
    write("processes", {"settings": settings, "small_message_s": message, "found": contents}, quick=quick)


if __name__ == "__main__":
    main()
