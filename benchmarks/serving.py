"""An answer of each built-in recipe: with gradients, under no_grad, under inference_mode, exported, compiled; batched.

Weights are random, which costs nothing. A turn is as many calls as take a tenth of a second with gradients, the
same for every way, all ways within one round. Kept memory is what autograd saves for a backward that never comes.
The last table answers one sample after another, and 16 clients at once through the server's own batching, without HTTP.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch
from measure import Cost, SideBySide, console, interleave, options, table, write
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from trueloop.app.export.export_run import samples
from trueloop.app.serving.batching import Batcher
from trueloop.export.artifact import open_artifact
from trueloop.export.exported_model import Model
from trueloop.export.formats import open_model
from trueloop.export.write import ExportSpec, export
from trueloop.recipes import registry

RECIPES = ("digits", "tabular", "text")
SIZES = (1, 32)
TURN_S = 0.1
GRAD, NO_GRAD, INFERENCE = "eager, gradients on", "eager, no_grad", "eager, inference_mode"
COMPILED = "torch.compile, inference_mode"
KINDS = ("pt2", "onnx", "torchscript")
CLIENTS = 16


@dataclass(frozen=True, slots=True)
class Subject:
    """A recipe's model, its input, and what was exported of it."""

    model: nn.Module
    inputs: tuple[Tensor, ...]
    artifacts: Mapping[str, Path]


def subject(name: str, root: Path, kinds: tuple[str, ...]) -> Subject:
    recipe = registry.load(name)
    parts = recipe.assemble(recipe.options)
    parts.model.eval()
    names, batches, _ = samples(parts)
    folders: dict[str, Path] = {}
    for kind in kinds:
        folders[kind] = root / f"{name}-{kind}"
        folders[kind].mkdir()
        export(parts.model, ExportSpec(kind=kind, names=names, batches=batches), folders[kind], {})
    return Subject(parts.model, batches[0], folders)


def batch_of(inputs: tuple[Tensor, ...], size: int) -> tuple[Tensor, ...]:
    return tuple(each.repeat(-(-size // len(each)), *[1] * (each.dim() - 1))[:size].clone() for each in inputs)


def ways(given: Subject, inputs: tuple[Tensor, ...], *, compiled: bool) -> dict[str, Callable[[], Any]]:
    model = given.model

    def under(context: Any, called: Callable[..., Any]) -> Callable[[], Any]:
        def call() -> Any:
            with context():
                return called(*inputs)

        return call

    found: dict[str, Callable[[], Any]] = {
        GRAD: lambda: model(*inputs),
        NO_GRAD: under(torch.no_grad, model),
        INFERENCE: under(torch.inference_mode, model),
    }
    for kind, folder in given.artifacts.items():
        run = open_model(kind, open_artifact(folder).file, threads=1)
        found[f"exported, {kind}"] = lambda run=run: run(inputs)
    if compiled:
        found[COMPILED] = under(torch.inference_mode, torch.compile(model))
    return found


def kept_bytes(call: Callable[[], Any]) -> int:
    """What autograd keeps alive of one call, beyond the parameters it would keep anyway."""
    total = 0

    def pack(tensor: Tensor) -> Tensor:
        nonlocal total
        total += 0 if isinstance(tensor, nn.Parameter) else tensor.nbytes
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        call()
    return total


def turn(call: Callable[[], Any], times: int) -> Cost:
    wall, cpu = perf_counter(), process_time()
    for _ in range(times):
        call()
    return Cost((perf_counter() - wall) / times, (process_time() - cpu) / times)


def compare(given: Subject, size: int, *, rounds: int, compiled: bool) -> tuple[SideBySide, dict[str, int]]:
    calls = ways(given, batch_of(given.inputs, size), compiled=compiled)
    for call in calls.values():
        for _ in range(3):
            call()
    start = perf_counter()
    calls[GRAD]()
    times = max(1, round(TURN_S / (perf_counter() - start)))
    found = interleave({name: lambda call=call: turn(call, times) for name, call in calls.items()}, rounds)
    return found, {name: kept_bytes(calls[name]) for name in (GRAD, NO_GRAD, INFERENCE)}


def batching(given: Subject, *, requests: int, rounds: int) -> SideBySide:
    """Answer single samples: alone, and many clients through a batcher."""
    model = Model.open(given.artifacts["pt2"])
    sample = tuple(each[0].numpy() for each in given.inputs)

    def alone() -> Cost:
        return turn(lambda: model.run([sample]), requests)

    def together(most: int) -> Cost:
        batcher = Batcher(model.run, max_batch=most, delay_s=0.002 if most > 1 else 0.0, max_waiting=10 * CLIENTS)
        wall, cpu = perf_counter(), process_time()
        with ThreadPoolExecutor(CLIENTS) as clients:
            list(clients.map(lambda _: batcher.submit([sample]).result(), range(requests)))
        cost = Cost((perf_counter() - wall) / requests, (process_time() - cpu) / requests)
        batcher.stop()
        return cost

    return interleave(
        {
            "one client, one at a time": alone,
            f"{CLIENTS} clients, one at a time": lambda: together(1),
            f"{CLIENTS} clients, up to 32 together": lambda: together(32),
        },
        rounds,
    )


def main() -> None:
    asked = options(__doc__)
    rounds, kinds = (3, ("pt2",)) if asked.quick else (15, KINDS)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in RECIPES[1:2] if asked.quick else RECIPES:
            given = subject(name, Path(folder), kinds)
            for size in SIZES:
                costs, kept = compare(given, size, rounds=rounds, compiled=not asked.quick)
                rows = [
                    [way, f"{1e6 * costs.cost(way).median:.0f}", str(costs.ratio(way, GRAD)),
                     f"{kept[way] / 1024:.1f}" if way in kept else ""]
                    for way in costs.costs
                ]  # fmt: skip
                table(f"{name}, batch of {size}", ["way", "µs per call", "ratio to gradients on", "KiB kept"], rows)
                found[f"{name}, {size}"] = {
                    way: {"seconds": costs.cost(way), "ratio": costs.ratio(way, GRAD), "kept_bytes": kept.get(way)}
                    for way in costs.costs
                }
            served = batching(given, requests=64 if asked.quick else 512, rounds=rounds)
            first = next(iter(served.costs))
            table(
                f"{name}, requests of one sample",
                ["way", "µs per request", f"ratio to {first}"],
                [[way, f"{1e6 * served.cost(way).median:.0f}", str(served.ratio(way, first))] for way in served.costs],
            )
            found[f"{name}, served"] = {
                way: {"seconds": served.cost(way), "ratio": served.ratio(way, first)} for way in served.costs
            }
    console.print("A ratio below 1 is faster.")
    write("serving", {"found": found}, quick=asked.quick)


if __name__ == "__main__":
    main()
