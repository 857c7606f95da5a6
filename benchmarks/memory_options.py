"""Measure how much memory each memory option saves, and what it costs in time.

Each option is compared with what it replaces: chunked cross-entropy with PyTorch's cross-entropy on the logits of all
tokens, for three vocabulary sizes; recomputed blocks with stored ones, in a transformer of six blocks; and convolutions
in the channels-last layout with the default layout. The layout saves no memory; it is measured for its time. Memory is
the peak of PyTorch's CPU allocator during one forward and backward pass, without the tensors that existed before. Time
is CPU time.
"""

from __future__ import annotations

import gc
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from measure import Cost, SideBySide, console, interleave, options, table, write
from torch import nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile
from workloads import SmallGPT

from trueloop.autograd.cross_entropy import chunked_cross_entropy
from trueloop.recipes.digits import network
from trueloop.training.memory.channels_last import use_channels_last
from trueloop.training.memory.recompute import enable_recompute

MIB = 2**20
Pass = Callable[[], Any]
"""One forward and backward pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A computation in two variants: ``plain`` without the option, ``saving`` with it."""

    plain: Pass
    saving: Pass
    passes: int
    """Number of passes in one measurement."""


def head(tokens: int, width: int, vocabulary: int, passes: int) -> Case:
    """Compare the two losses on hidden states [tokens, width]."""
    torch.manual_seed(0)
    layer = nn.Linear(width, vocabulary, bias=False)
    hidden = torch.randn(tokens, width, requires_grad=True)
    target = torch.randint(0, vocabulary, (tokens,))

    def without_gradients(loss: Callable[[], Any]) -> Pass:
        def run() -> None:
            layer.weight.grad = hidden.grad = None
            loss().backward()

        return run

    return Case(
        plain=without_gradients(lambda: F.cross_entropy(layer(hidden), target, reduction="sum")),
        saving=without_gradients(lambda: chunked_cross_entropy(hidden, layer, target).sum),
        passes=passes,
    )


def training_pass(model: nn.Module, inputs: Any, target: Any) -> Pass:
    """Return a function that runs one pass of a model with cross-entropy."""

    def run() -> None:
        model.zero_grad(set_to_none=True)
        F.cross_entropy(model(inputs), target).backward()

    return run


def blocks() -> Case:
    """Compare two equal transformers of six blocks, one of which recomputes its blocks."""
    inputs, target = torch.randint(256, (4, 256)), torch.randint(256, (4, 256))
    torch.manual_seed(0)
    plain, saving = (SmallGPT(width=96, layers=6, length=256) for _ in range(2))
    enable_recompute(saving)
    return Case(plain=training_pass(plain, inputs, target), saving=training_pass(saving, inputs, target), passes=2)


def convolutions(size: int, batch: int, passes: int) -> Case:
    """Compare the convolutional part of the digits recipe in two layouts, on images of ``size`` squared."""
    torch.manual_seed(0)
    plain, saving = (
        nn.Sequential(*list(network(width=32, dropout=0.0))[:4], nn.AdaptiveAvgPool2d(1), nn.Flatten())
        for _ in range(2)
    )
    use_channels_last(saving)
    inputs, target = torch.randn(batch, 1, size, size), torch.randint(10, (batch,))
    return Case(plain=training_pass(plain, inputs, target), saving=training_pass(saving, inputs, target), passes=passes)


CASES: Mapping[str, Callable[[], Case]] = {
    "cross-entropy, 2,048 tokens, 256 words": lambda: head(2048, 64, 256, 20),
    "cross-entropy, 1,024 tokens, 8,192 words": lambda: head(1024, 128, 8192, 2),
    "cross-entropy, 1,024 tokens, 50,257 words": lambda: head(1024, 128, 50257, 1),
    "recompute, transformer of 6 blocks": blocks,
    "channels-last, 8 x 8 images": lambda: convolutions(8, 64, 20),
    "channels-last, 32 x 32 images": lambda: convolutions(32, 32, 2),
}


def measure_time(run: Pass, passes: int) -> Cost:
    """Return what one pass costs."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(passes):
        run()
    return Cost((time.perf_counter() - wall) / passes, (time.process_time() - cpu) / passes)


def peak(run: Pass) -> float:
    """Return the peak of the bytes that one pass allocates for tensors."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise the profiler writes to stderr at every start
    run()
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = [e for e in json.loads(path.read_text())["traceEvents"] if e.get("name") == "[memory]"]
    events.sort(key=lambda event: event["ts"])
    first = events[0]["args"]
    return max(e["args"]["Total Allocated"] for e in events) - (first["Total Allocated"] - first["Bytes"])


def main() -> None:
    """Measure every case."""
    quick = options(__doc__).quick
    rounds = 1 if quick else 7
    found: dict[str, dict[str, Any]] = {}
    for name, make in CASES.items():
        case = make()
        runs = {"plain": lambda case=case: measure_time(case.plain, case.passes)}
        runs["saving"] = lambda case=case: measure_time(case.saving, case.passes)
        times: SideBySide = interleave(runs, rounds)
        found[name] = {
            "plain_bytes": peak(case.plain),
            "saving_bytes": peak(case.saving),
            "cpu_ratio": times.ratio("saving", "plain", "cpu"),
            "plain_s": times.cost("plain", "cpu"),
        }
    rows = [
        [
            name,
            f"{measured['plain_bytes'] / MIB:.1f}",
            f"{measured['saving_bytes'] / MIB:.1f}",
            str(measured["cpu_ratio"]),
        ]
        for name, measured in found.items()
    ]
    table("Memory options", ["", "peak before, MiB", "peak after, MiB", "time ratio"], rows)
    console.print(f"{rounds} rounds")
    write("memory_options", {"settings": {"rounds": rounds}, "found": found}, quick=quick)


if __name__ == "__main__":
    main()
