"""Measure the time per update of each training system on the same small models.

The perceptron has so little arithmetic that the loop around it dominates; the transformer and the convolutional network
show the remaining difference on real work. The distance of the final weights from those of the hand-written loop is
printed too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from measure import Batches, Clock, Cost, SideBySide, console, interleave, options, table, verdict, write
from systems import by_hand, with_accelerate, with_hf_trainer, with_lightning, with_trueloop
from systems.task import Task, adamw, fused_adamw, plain_adamw
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from workloads import Batch, cnn, cnn_batches, gpt, gpt_batches, join_batches, mlp, mlp_batches

TRUELOOP = "trueloop"
BARE = "bare five lines, default AdamW"
BY_HAND = "by hand, default AdamW"
BY_HAND_FUSED = "by hand, fused AdamW"
TEXTBOOK = "textbook loop"
DEFAULTS = "trueloop, its default settings"

PEERS: Mapping[str, Callable[[Task], None]] = {
    "Lightning, barebones, fused": with_lightning.train,
    "Lightning with self.log, fused": partial(with_lightning.train, use_self_log=True),
    "Accelerate, fused": with_accelerate.train_fast,
    "HF Trainer, fused": with_hf_trainer.train,
}

# task, system, reference, and goal: the largest ratio of their times
GOALS = (
    ("mlp", TRUELOOP, BY_HAND_FUSED, 1.00),
    ("mlp", TRUELOOP, BARE, 0.85),
    ("gpt", TRUELOOP, BY_HAND_FUSED, 1.00),
    ("cnn", TRUELOOP, BY_HAND_FUSED, 1.00),
    ("textbook", DEFAULTS, TEXTBOOK, 1.00),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A model, its data, and the duration of its measurement."""

    model: Callable[[], nn.Module]
    batches: list[Batch]
    updates: int
    warm: int
    rounds: int
    peers: bool = False


def workloads(*, quick: bool) -> dict[str, Workload]:
    """Return the workloads; with ``quick``, each takes a few seconds."""
    divisor = 3 if quick else 1
    return {
        "mlp": Workload(
            model=mlp, batches=mlp_batches(), updates=900 // divisor, warm=100, rounds=2 if quick else 21, peers=True
        ),
        "gpt": Workload(model=gpt, batches=gpt_batches(), updates=24 // divisor, warm=3, rounds=3 if quick else 15),
        "cnn": Workload(model=cnn, batches=cnn_batches(), updates=180 // divisor, warm=20, rounds=3 if quick else 21),
    }


def run(system: Callable[[Task], None], load: Workload, last: dict[str, Tensor], name: str, **task: Any) -> Cost:
    """Train a new model once, store its final weights in ``last``, and return the mean cost of an update."""
    batches = Batches(load.batches, load.updates)
    model = load.model()
    torch.manual_seed(0)
    system(Task(model=model, loss=nn.CrossEntropyLoss(), batches=batches, **task))
    last[name] = torch.cat([p.detach().flatten() for p in model.parameters()])
    return batches.clock.per_tick(load.warm)


def compare(load: Workload) -> tuple[SideBySide, dict[str, Tensor]]:
    """Time every system on one workload; also return the final weights of each system."""
    last: dict[str, Tensor] = {}
    settings: dict[str, Any] = {"clip": 1.0, "cosine": True, "record": True}
    trueloop = partial(with_trueloop.train, own_optimizer=True)
    runs = {
        BARE: partial(run, by_hand.bare, load, last, BARE, optimizer=plain_adamw),
        BY_HAND: partial(run, by_hand.production, load, last, BY_HAND, optimizer=adamw, **settings),
        BY_HAND_FUSED: partial(run, by_hand.production, load, last, BY_HAND_FUSED, optimizer=fused_adamw, **settings),
        TRUELOOP: partial(run, trueloop, load, last, TRUELOOP, optimizer=fused_adamw, **settings),
    }
    if load.peers:
        for name, peer in PEERS.items():
            runs[name] = partial(run, peer, load, last, name, optimizer=fused_adamw, **settings)
    return interleave(runs, load.rounds), last


class TimedModel(nn.Module):
    """A model that records the time of every call, for runs whose data has no clock."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.clock = Clock()

    def forward(self, x: Tensor) -> Tensor:
        """Call the net."""
        self.clock.tick()
        return self.net(x)


def compare_textbook(*, quick: bool) -> SideBySide:
    """Time whole runs on shuffled batches of a dataset."""
    dataset = TensorDataset(*join_batches(cnn_batches()))
    epochs, warm = (3, 20) if quick else (8, 20)
    batch = 64

    def timed(train: Callable[[nn.Module], None]) -> Cost:
        model = TimedModel(cnn())
        train(model)
        return model.clock.per_tick(warm)

    def by_textbook(model: nn.Module) -> None:
        by_hand.textbook(model, nn.CrossEntropyLoss(), dataset, epochs=epochs, batch=batch)

    def by_trueloop(model: nn.Module) -> None:
        with_trueloop.train_dataset(model, nn.CrossEntropyLoss(), dataset, epochs=epochs, batch=batch)

    runs = {TEXTBOOK: partial(timed, by_textbook), DEFAULTS: partial(timed, by_trueloop)}
    return interleave(runs, 3 if quick else 15)


def references(found: SideBySide) -> list[str]:
    """Return the names of the systems with which the others are compared."""
    return [name for name in (BARE, BY_HAND, BY_HAND_FUSED, TEXTBOOK) if name in found.costs]


def show(name: str, found: SideBySide, last: Mapping[str, Tensor]) -> None:
    """Print the table of a workload: times, ratios, and the distance of the final weights from the loop by hand."""
    rows = [
        [
            system,
            f"{found.cost(system).median * 1e6:,.0f}",
            *(
                f"{found.ratio(system, ref)}\n[dim]cpu[/] {found.ratio(system, ref, 'cpu')}"
                for ref in references(found)
            ),
            f"{(last[system] - last[BY_HAND]).norm() / last[BY_HAND].norm():.0e}" if last else "",
        ]
        for system in found.costs
    ]
    columns = ["system", "µs per update", *(f"/ {reference}" for reference in references(found)), "distance of weights"]
    table(f"{name}: median ratio within a round (middle 80 % of the rounds), by wall and by CPU time", columns, rows)


def content(found: SideBySide) -> dict[str, Any]:
    """Return the figures for the result file."""
    return {
        system: {
            "seconds_per_update": found.cost(system),
            "wall_ratio_to": {reference: found.ratio(system, reference) for reference in references(found)},
            "cpu_ratio_to": {reference: found.ratio(system, reference, "cpu") for reference in references(found)},
        }
        for system in found.costs
    }


def main() -> None:
    """Time all workloads."""
    quick = options(__doc__).quick
    found: dict[str, SideBySide] = {}
    for name, load in workloads(quick=quick).items():
        found[name], last = compare(load)
        show(name, found[name], last)
    found["textbook"] = compare_textbook(quick=quick)
    show("small CNN over a TensorDataset, shuffled", found["textbook"], {})
    for name, system, reference, goal in GOALS:
        wall, cpu = (found[name].ratio(system, reference, clock) for clock in ("wall", "cpu"))
        measured = f"{name}: {system} / {reference} = {wall} by wall, {cpu} by CPU time"
        console.print(f"{verdict(wall.median, goal)} {verdict(cpu.median, goal)}  {measured}, goal {goal:.2f}")
    settings = {"rounds": {name: len(next(iter(side.costs.values()))) for name, side in found.items()}}
    write(
        "overhead", {"settings": settings, "found": {name: content(side) for name, side in found.items()}}, quick=quick
    )


if __name__ == "__main__":
    main()
