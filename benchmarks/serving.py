"""Measure the time of an answer of each built-in recipe: eager, exported and compiled, single and batched.

Weights are random, which does not affect the time. Every round times each mode once, with the same number of calls: as
many as take a tenth of a second with gradients on. Saved memory is what autograd saves for a backward pass that is
never run. The last table measures single samples in sequence, and 16 concurrent clients through the server's batching,
without HTTP.
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

from trueloop.app.export.export_run import capture_samples
from trueloop.app.serving.batching import Batcher
from trueloop.export.artifact import open_artifact
from trueloop.export.exported_model import Model
from trueloop.export.formats import open_model
from trueloop.export.write import ExportSpec, export
from trueloop.recipes import registry

RECIPES = ("digits", "tabular", "text")
SIZES = (1, 32)
TIMING_S = 0.1
GRAD, NO_GRAD, INFERENCE = "eager, gradients on", "eager, no_grad", "eager, inference_mode"
COMPILED = "torch.compile, inference_mode"
KINDS = ("pt2", "onnx", "torchscript")
CLIENTS = 16


@dataclass(frozen=True, slots=True)
class RecipeModel:
    """A recipe's model, an example input, and the folders of the exported models by format."""

    model: nn.Module
    inputs: tuple[Tensor, ...]
    artifacts: Mapping[str, Path]


def export_recipe(name: str, root: Path, kinds: tuple[str, ...]) -> RecipeModel:
    recipe = registry.load(name)
    parts = recipe.assemble(recipe.options)
    parts.model.eval()
    names, batches, _ = capture_samples(parts)
    folders: dict[str, Path] = {}
    for kind in kinds:
        folders[kind] = root / f"{name}-{kind}"
        folders[kind].mkdir()
        export(parts.model, ExportSpec(kind=kind, names=names, batches=batches), folders[kind], {})
    return RecipeModel(parts.model, batches[0], folders)


def batch_of(inputs: tuple[Tensor, ...], size: int) -> tuple[Tensor, ...]:
    return tuple(each.repeat(-(-size // len(each)), *[1] * (each.dim() - 1))[:size].clone() for each in inputs)


def modes(recipe_model: RecipeModel, inputs: tuple[Tensor, ...], *, compiled: bool) -> dict[str, Callable[[], Any]]:
    model = recipe_model.model

    def within(context: Any, function: Callable[..., Any]) -> Callable[[], Any]:
        def call() -> Any:
            with context():
                return function(*inputs)

        return call

    calls: dict[str, Callable[[], Any]] = {
        GRAD: lambda: model(*inputs),
        NO_GRAD: within(torch.no_grad, model),
        INFERENCE: within(torch.inference_mode, model),
    }
    for kind, folder in recipe_model.artifacts.items():
        run = open_model(kind, open_artifact(folder).file, threads=1)
        calls[f"exported, {kind}"] = lambda run=run: run(inputs)
    if compiled:
        calls[COMPILED] = within(torch.inference_mode, torch.compile(model))
    return calls


def saved_bytes(call: Callable[[], Any]) -> int:
    """Return the bytes that autograd saves during one call, without parameters, which exist anyway."""
    total = 0

    def pack(tensor: Tensor) -> Tensor:
        nonlocal total
        total += 0 if isinstance(tensor, nn.Parameter) else tensor.nbytes
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        call()
    return total


def time_calls(call: Callable[[], Any], times: int) -> Cost:
    wall, cpu = perf_counter(), process_time()
    for _ in range(times):
        call()
    return Cost((perf_counter() - wall) / times, (process_time() - cpu) / times)


def compare(recipe_model: RecipeModel, size: int, *, rounds: int, compiled: bool) -> tuple[SideBySide, dict[str, int]]:
    calls = modes(recipe_model, batch_of(recipe_model.inputs, size), compiled=compiled)
    for call in calls.values():
        for _ in range(3):
            call()
    start = perf_counter()
    calls[GRAD]()
    times = max(1, round(TIMING_S / (perf_counter() - start)))
    found = interleave({name: lambda call=call: time_calls(call, times) for name, call in calls.items()}, rounds)
    return found, {name: saved_bytes(calls[name]) for name in (GRAD, NO_GRAD, INFERENCE)}


def batching(recipe_model: RecipeModel, *, requests: int, rounds: int) -> SideBySide:
    """Time requests of single samples: from one client, and from many clients through a batcher."""
    model = Model.open(recipe_model.artifacts["pt2"])
    sample = tuple(each[0].numpy() for each in recipe_model.inputs)

    def one_client() -> Cost:
        return time_calls(lambda: model.run([sample]), requests)

    def many_clients(max_batch: int) -> Cost:
        batcher = Batcher(
            model.run, max_batch=max_batch, delay_s=0.002 if max_batch > 1 else 0.0, max_waiting=10 * CLIENTS
        )
        wall, cpu = perf_counter(), process_time()
        with ThreadPoolExecutor(CLIENTS) as clients:
            list(clients.map(lambda _: batcher.submit([sample]).result(), range(requests)))
        cost = Cost((perf_counter() - wall) / requests, (process_time() - cpu) / requests)
        batcher.stop()
        return cost

    return interleave(
        {
            "one client, one at a time": one_client,
            f"{CLIENTS} clients, one at a time": lambda: many_clients(1),
            f"{CLIENTS} clients, up to 32 per batch": lambda: many_clients(32),
        },
        rounds,
    )


def main() -> None:
    arguments = options(__doc__)
    rounds, kinds = (3, ("pt2",)) if arguments.quick else (15, KINDS)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in RECIPES[1:2] if arguments.quick else RECIPES:
            recipe_model = export_recipe(name, Path(folder), kinds)
            for size in SIZES:
                costs, saved = compare(recipe_model, size, rounds=rounds, compiled=not arguments.quick)
                rows = [
                    [mode, f"{1e6 * costs.cost(mode).median:.0f}", str(costs.ratio(mode, GRAD)),
                     f"{saved[mode] / 1024:.1f}" if mode in saved else ""]
                    for mode in costs.costs
                ]  # fmt: skip
                table(f"{name}, batch of {size}", ["mode", "µs per call", "ratio to gradients on", "KiB saved"], rows)
                found[f"{name}, {size}"] = {
                    mode: {
                        "seconds": costs.cost(mode),
                        "ratio": costs.ratio(mode, GRAD),
                        "saved_bytes": saved.get(mode),
                    }
                    for mode in costs.costs
                }
            served = batching(recipe_model, requests=64 if arguments.quick else 512, rounds=rounds)
            first = next(iter(served.costs))
            table(
                f"{name}, requests of one sample",
                ["mode", "µs per request", f"ratio to {first}"],
                [
                    [mode, f"{1e6 * served.cost(mode).median:.0f}", str(served.ratio(mode, first))]
                    for mode in served.costs
                ],
            )
            found[f"{name}, served"] = {
                mode: {"seconds": served.cost(mode), "ratio": served.ratio(mode, first)} for mode in served.costs
            }
    console.print("A ratio below 1 is faster.")
    write("serving", {"found": found}, quick=arguments.quick)


if __name__ == "__main__":
    main()
