"""Measure the time per update of trueloop and of usual training loops, in whole runs and on prepared batches.

Whole runs train on shuffled batches of a dataset: trueloop with its default settings, the others as in torch's
tutorials and in nanoGPT, both with mixed precision and in float32. Loops train on the same prepared batches in all
systems, also with torch.compile and with a hand-written update that is compiled as one program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from measure import Cost, SideBySide, console, interleave, options, table, verdict, write
from overhead import PEERS, TimedModel, Workload, run, workloads
from systems import by_hand, compiled, textbook, with_trueloop
from systems.task import Task, fused_adamw, plain_adamw
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset
from workloads import cnn, gpt, join_batches, mlp, mlp_batches

DEFAULTS = "trueloop, its default settings"
AMP, PLAIN = "textbook, mixed precision", "textbook, float32"
BARE, BARE_COMPILED = "raw loop", "raw loop, torch.compile(model)"
PRODUCTION = "production loop by hand, fused"
WHOLE = "update compiled by hand"
TRUELOOP, COMPILED = "trueloop", "trueloop --compile"
RIVALS = ("Lightning, barebones, fused", "Accelerate, fused", "HF Trainer, fused")

RAW_SHARE = 0.35  # goal: time of trueloop's compiled update of the small perceptron, relative to the raw loop
FASTER = 1.3  # goal: speed relative to the textbook loop, in two of the three tasks


class Slices(Dataset[Any]):
    """The slices of ``length`` bytes of a text, each with the slice that begins one byte later as its target."""

    def __init__(self, text: bytes, length: int, count: int) -> None:
        self._text = torch.from_numpy(np.frombuffer(text, dtype=np.uint8).astype(np.int64))
        self._length, self._count = length, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        piece = self._text[index : index + self._length + 1]
        return piece[:-1], piece[1:]


def digits() -> TensorDataset:
    """Return scikit-learn's digits as images (N, 1, 8, 8) in [0, 1] and classes (N,)."""
    from sklearn.datasets import load_digits

    dataset = load_digits()
    images = torch.from_numpy(dataset.images).float().unsqueeze(1) / 16
    return TensorDataset(images, torch.from_numpy(dataset.target).long())


def text() -> bytes:
    """Return the text of Python's language reference, which is part of Python's installation."""
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics)).encode()


def whole_runs(*, quick: bool) -> dict[str, SideBySide]:
    """Time whole runs of the three tasks."""
    rounds, loss = 3 if quick else 15, nn.CrossEntropyLoss()
    points = TensorDataset(*join_batches(mlp_batches(count=50)))
    images, words, length = digits(), text(), 64
    updates, size = (24, 8) if quick else (60, 8)
    slices = Slices(words, length, updates * size)

    def timed(model: Callable[[], nn.Module], warm: int, train: Callable[[nn.Module], None]) -> Cost:
        timed_model = TimedModel(model())
        train(timed_model)
        return timed_model.clock.per_tick(warm)

    def dataset_systems(dataset: Dataset[Any], epochs: int, batch: int) -> dict[str, Callable[[nn.Module], None]]:
        sizes: dict[str, Any] = {"epochs": epochs, "batch": batch}
        return {
            AMP: lambda model: textbook.tutorial(model, loss, dataset, use_amp=True, **sizes),
            PLAIN: lambda model: textbook.tutorial(model, loss, dataset, use_amp=False, **sizes),
            DEFAULTS: lambda model: with_trueloop.train_dataset(model, loss, dataset, **sizes),
        }

    def train_nanogpt(model: nn.Module, *, use_amp: bool) -> None:
        textbook.nanogpt(model, loss, words, updates=updates, batch=size, length=length, use_amp=use_amp)

    tasks = {
        "mlp": (mlp, 100, dataset_systems(points, 6 if quick else 18, 32)),
        "gpt": (
            gpt,
            4,
            {
                AMP: partial(train_nanogpt, use_amp=True),
                PLAIN: partial(train_nanogpt, use_amp=False),
                DEFAULTS: dataset_systems(slices, 1, size)[DEFAULTS],
            },
        ),
        "cnn": (cnn, 20, dataset_systems(images, 3 if quick else 8, 64)),
    }
    return {
        name: interleave({system: partial(timed, model, warm, train) for system, train in trains.items()}, rounds)
        for name, (model, warm, trains) in tasks.items()
    }


def loops(load: Workload, rounds: int) -> SideBySide:
    """Time all systems on the same prepared batches of one task."""
    final_weights: dict[str, Tensor] = {}
    settings: dict[str, Any] = {"clip": 1.0, "cosine": True, "record": True}
    trueloop = partial(with_trueloop.train, own_optimizer=True)
    systems: dict[str, Callable[[Task], None]] = {
        PRODUCTION: by_hand.production,
        TRUELOOP: trueloop,
        COMPILED: partial(trueloop, compile=True),
        WHOLE: compiled.update_as_one_program,
        **{name: PEERS[name] for name in RIVALS},
    }
    runs = {
        BARE: partial(run, by_hand.bare, load, final_weights, BARE, optimizer=plain_adamw),
        BARE_COMPILED: partial(run, compiled.model_only, load, final_weights, BARE_COMPILED, optimizer=plain_adamw),
    }
    for name, system in systems.items():
        runs[name] = partial(run, system, load, final_weights, name, optimizer=fused_adamw, **settings)
    return interleave(runs, rounds)


def faster_textbook(found: SideBySide) -> str:
    """Return the faster textbook loop, with or without mixed precision, for a fair comparison."""
    return min((AMP, PLAIN), key=lambda name: found.cost(name).median)


def show(title: str, found: SideBySide, reference: str) -> None:
    """Print one table."""
    rows: list[list[str]] = []
    for name in found.costs:
        ratios = (found.ratio(name, reference, clock) for clock in ("wall", "cpu"))
        rows.append([name, f"{found.cost(name).median * 1e6:,.0f}", *map(str, ratios)])
    table(title, ["system", "µs per update", f"/ {reference}, wall", "CPU time"], rows)


def content(found: SideBySide, references: tuple[str, ...]) -> dict[str, Any]:
    """Return the figures for the result file."""
    return {
        name: {
            "seconds_per_update": found.cost(name),
            "wall_ratio_to": {reference: found.ratio(name, reference) for reference in references},
            "cpu_ratio_to": {reference: found.ratio(name, reference, "cpu") for reference in references},
        }
        for name in found.costs
    }


def judge(whole: Mapping[str, SideBySide], looped: Mapping[str, SideBySide]) -> None:
    """Print which goals are met, by wall and by CPU time."""
    for clock in ("wall", "cpu"):
        shares = {name: found.ratio(DEFAULTS, faster_textbook(found), clock).median for name, found in whole.items()}
        for name, share in shares.items():
            console.print(
                f"{verdict(share, 1.0)}  {clock}, {name}: {DEFAULTS} takes {share:.3f} of the faster textbook"
            )
        mixed = {name: found.ratio(DEFAULTS, AMP, clock).median for name, found in whole.items()}
        for reference, ratios in (("the faster textbook", shares), (AMP, mixed)):
            wins = sum(share <= 1 / FASTER for share in ratios.values())
            console.print(
                f"{verdict(-wins, -2)}  {clock}: {FASTER} times as fast as {reference}: {wins} of {len(ratios)}, goal 2"
            )
        share = looped["mlp"].ratio(COMPILED, BARE, clock)
        console.print(
            f"{verdict(share.median, RAW_SHARE)}  {clock}, mlp: {COMPILED} / {BARE} = {share}, goal {RAW_SHARE}"
        )
        for name, found in looped.items():
            for peer in RIVALS:
                ratio = found.ratio(TRUELOOP, peer, clock)
                console.print(
                    f"{verdict(ratio.median, 1.0)}  {clock}, {name}: {TRUELOOP} / {peer} = {ratio}, goal 1.00"
                )


def main() -> None:
    """Time whole runs, then loops."""
    quick = options(__doc__).quick
    whole = whole_runs(quick=quick)
    for name, found in whole.items():
        show(f"{name}: whole runs", found, faster_textbook(found))
    looped: dict[str, SideBySide] = {}
    for name, load in workloads(quick=quick).items():
        looped[name] = loops(load, rounds=2 if quick else 9)
        show(f"{name}: prepared batches", looped[name], BARE)
    judge(whole, looped)
    found = {
        "whole runs": {name: content(each, (AMP, PLAIN)) for name, each in whole.items()},
        "loops": {name: content(each, (BARE, PRODUCTION)) for name, each in looped.items()},
    }
    write("speed", {"settings": {"compiler": torch.__version__}, "found": found}, quick=quick)


if __name__ == "__main__":
    main()
