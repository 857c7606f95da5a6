"""Measure how far each system's accumulated updates are from those of one big batch.

Everything is float64 and deterministic, so correct arithmetic agrees with the reference up to rounding (1e-12). The
reference trains on the concatenated micro-batches of each window. There are six cases with K = 4 micro-batches per
window, two optimizers and three epochs; all systems get the same micro-batches in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from measure import Batches, console, options, table, verdict, write
from systems import by_hand, with_accelerate, with_hf_trainer, with_lightning, with_trueloop
from systems.task import Task
from torch import Tensor, nn
from torch.optim import Optimizer
from workloads import Batch

GOAL = 1e-12  # largest relative deviation of the weights after any update, in every case
WINDOW = 4
MICRO_BATCH = 8
CLASSES = 5
POSITIONS = 7
IGNORED = -100

# name -> (micro-batches per epoch, examples in the last one, targets per token)
CASES: Mapping[str, tuple[int, int, bool]] = {
    "even": (12, MICRO_BATCH, False),
    "short last window": (10, MICRO_BATCH, False),
    "ragged last micro-batch": (12, 3, False),
    "both": (10, 3, False),
    "tokens": (12, MICRO_BATCH, True),
    "tokens + both": (10, 3, True),
}

OPTIMIZERS: Mapping[str, Callable[[nn.Module], Optimizer]] = {
    "SGD": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    "AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2),
}

SYSTEMS: Mapping[str, Callable[[Task], None]] = {
    "trueloop": with_trueloop.train,
    "raw loop, loss / K": by_hand.accumulate,
    "Lightning accumulate_grad_batches": with_lightning.train,
    "Accelerate accumulate()": with_accelerate.train,
    "Accelerate, variable-size recipe": with_accelerate.train_counted,
    "HF Trainer, model's own loss": with_hf_trainer.train,
    "HF Trainer, compute_loss_func": partial(with_hf_trainer.train, counted=True),
}


class PerToken(nn.Module):
    """The same small network at every position; returns logits (B, C, T), the layout of `nn.CrossEntropyLoss`."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T, features) to (B, C, T)."""
        return self.net(x).transpose(1, 2)


def model(*, tokens: bool) -> nn.Module:
    """Create the network, always with the same weights."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES)).double()
    return PerToken(net) if tokens else net


def micro_batches(count: int, last: int, *, tokens: bool) -> list[Batch]:
    """Create the micro-batches of an epoch; with ``tokens``, targets after a sequence's length are `IGNORED`."""
    generator = torch.Generator().manual_seed(1)
    batches: list[Batch] = []
    for index in range(count):
        size = last if index == count - 1 else MICRO_BATCH
        shape = (size, POSITIONS) if tokens else (size,)
        inputs = torch.randn(*shape, 6, generator=generator, dtype=torch.float64)
        targets = torch.randint(CLASSES, shape, generator=generator)
        if tokens:
            longest = 1 + (index * 3) % POSITIONS  # batches of long and of short sequences, as in sorted text
            lengths = torch.randint(1, longest + 1, (size, 1), generator=generator)
            targets[torch.arange(POSITIONS) >= lengths] = IGNORED
        batches.append((inputs, targets))
    return batches


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """Distance of a trajectory from that of the reference."""

    of_weights: float
    """Largest ||theta - theta_ref|| / ||theta_ref|| over all updates."""
    of_movement: float
    """Largest ||theta - theta_ref|| / ||theta_ref - theta_0|| over all updates."""
    updates: int


def trajectory(train: Callable[[Task], None], case: str, optimizer: str, epochs: int) -> Tensor:
    """Return the parameters before training and after every update, shape (updates + 1, parameters)."""
    count, last, tokens = CASES[case]
    network = model(tokens=tokens)
    points = [flatten_parameters(network)]

    def make_optimizer(module: nn.Module) -> Optimizer:
        created = OPTIMIZERS[optimizer](module)
        created.register_step_post_hook(lambda *_: points.append(flatten_parameters(network)))
        return created

    batches = Batches(micro_batches(count, last, tokens=tokens), length=count)
    loss = nn.CrossEntropyLoss(ignore_index=IGNORED)
    train(Task(model=network, loss=loss, batches=batches, optimizer=make_optimizer, epochs=epochs, window=WINDOW))
    return torch.stack(points)


def flatten_parameters(module: nn.Module) -> Tensor:
    """Copy all parameters into one vector."""
    return torch.cat([p.detach().flatten().clone() for p in module.parameters()])


def deviation(points: Tensor, reference: Tensor) -> Deviation:
    """Compare two trajectories, update by update."""
    if points.shape != reference.shape:
        raise ValueError(f"{len(points) - 1} updates, but the reference makes {len(reference) - 1}")
    distances = (points - reference)[1:].norm(dim=1)
    movements = (reference[1:] - reference[0]).norm(dim=1)
    return Deviation(
        of_weights=(distances / reference[1:].norm(dim=1)).max().item(),
        of_movement=(distances / movements).max().item(),
        updates=len(points) - 1,
    )


def measure(epochs: int) -> dict[str, dict[str, dict[str, Deviation]]]:
    """Return optimizer -> system -> case -> deviation."""
    found: dict[str, dict[str, dict[str, Deviation]]] = {}
    for optimizer in OPTIMIZERS:
        references = {case: trajectory(by_hand.one_big_batch, case, optimizer, epochs) for case in CASES}
        found[optimizer] = {
            name: {case: deviation(trajectory(train, case, optimizer, epochs), references[case]) for case in CASES}
            for name, train in SYSTEMS.items()
        }
    return found


def show(found: Mapping[str, Mapping[str, Mapping[str, Deviation]]]) -> None:
    """Print one table per optimizer, and the verdict."""
    for optimizer, by_system in found.items():
        rows = [
            [name, *(f"{d.of_weights:.0e} [dim]{d.of_movement:4.0%}[/]" for d in by_case.values())]
            for name, by_case in by_system.items()
        ]
        title = (
            f"{optimizer}, K = {WINDOW}, float64: deviation from the big batch, [dim]and as a share of the movement[/]"
        )
        table(title, ["system", *CASES], rows)
    worst = max(d.of_weights for by_system in found.values() for d in by_system["trueloop"].values())
    console.print(f"{verdict(worst, GOAL)}  trueloop's worst deviation {worst:.1e}, goal {GOAL:.0e} in every case")


def main() -> None:
    """Run all cases."""
    quick = options(__doc__).quick
    epochs = 1 if quick else 3
    found = measure(epochs)
    show(found)
    content = {
        optimizer: {
            name: {case: {"of_weights": d.of_weights, "of_movement": d.of_movement} for case, d in by_case.items()}
            for name, by_case in by_system.items()
        }
        for optimizer, by_system in found.items()
    }
    settings = {"window": WINDOW, "micro_batch": MICRO_BATCH, "epochs": epochs, "dtype": "float64", "goal": GOAL}
    write("accumulation", {"settings": settings, "deviation": content}, quick=quick)


if __name__ == "__main__":
    main()
