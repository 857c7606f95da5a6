"""Measure a GPT-2-sized language model in bf16 on a CUDA device, compared with a loop in nanoGPT's style.

The benchmark measures updates per second, also as a share of the rate of a plain matrix product in the same process;
the cost of the sanitizer; the cost and savings of gradient checkpointing; and inference_mode compared with no_grad.
Without a CUDA device it is skipped. ``--tiny`` runs everything with a toy model on any device, as a smoke test.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from measure import Cost, SideBySide, console, interleave, table, write
from systems.task import decay_groups
from torch import Tensor, nn
from workloads import SmallGPT

import trueloop
from trueloop import OptimConfig, ScheduleConfig, TrainConfig, Trainer

NANO, NANO_COMPILED = "nanoGPT-style loop", "nanoGPT-style loop, torch.compile(model)"
OURS, OURS_COMPILED = "trueloop", "trueloop --compile"
WATCHED = "trueloop, watched"
RECOMPUTED = "trueloop, recompute"


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Sizes of the model and its batches, and the duration of the measurement."""

    width: int = 768
    layers: int = 12
    heads: int = 12
    length: int = 1024
    vocabulary: int = 50304  # nanoGPT's: GPT-2's 50257, padded to a multiple of 64
    batch: int = 16
    updates: int = 60
    warm: int = 20  # updates before the measurement
    rounds: int = 3

    def model(self) -> nn.Module:
        """Create the model, always with the same weights."""
        torch.manual_seed(0)
        sizes = {"width": self.width, "layers": self.layers, "heads": self.heads}
        return SmallGPT(**sizes, length=self.length, vocabulary=self.vocabulary)

    def flops(self) -> float:
        """Return the floating-point operations of one update, as nanoGPT counts them (PaLM's appendix B)."""
        weights = sum(p.numel() for p in self.model().parameters())
        per_token = 6 * weights + 12 * self.layers * self.width * self.length
        return per_token * self.batch * self.length


TINY = Size(width=32, layers=2, heads=2, length=16, vocabulary=64, batch=2, updates=8, warm=4, rounds=2)


class TimedBatches:
    """Batches on the CPU that measure the time from batch ``size.warm`` to the end, synchronised with the device."""

    def __init__(self, size: Size, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(1)
        shape = (size.batch, size.length + 1)
        texts = [torch.randint(size.vocabulary, shape, generator=generator) for _ in range(8)]
        self.batches = [(text[:, :-1].contiguous(), text[:, 1:].contiguous()) for text in texts]
        if device.type == "cuda":
            self.batches = [(x.pin_memory(), y.pin_memory()) for x, y in self.batches]
        self.size, self.device = size, device
        self.cost = Cost(0.0, 0.0)

    def __len__(self) -> int:
        return self.size.updates

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        wall = cpu = 0.0
        for index in range(self.size.updates):
            if index == self.size.warm:
                synchronize(self.device)
                wall, cpu = time.perf_counter(), time.process_time()
            yield self.batches[index % len(self.batches)]
        synchronize(self.device)
        count = self.size.updates - self.size.warm
        self.cost = Cost((time.perf_counter() - wall) / count, (time.process_time() - cpu) / count)


def synchronize(device: torch.device) -> None:
    """Wait until the device has completed all submitted work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def by_nanogpt(model: nn.Module, batches: TimedBatches, *, compiled: bool = False) -> None:
    """Train as nanoGPT's train.py does: fused AdamW, decay groups, autocast, clipping and a hand-written schedule."""
    device = batches.device
    model.to(device).train()
    optimizer = torch.optim.AdamW(decay_groups(model, 0.1), lr=6e-4, betas=(0.9, 0.95), fused=device.type == "cuda")
    criterion = nn.CrossEntropyLoss()
    forward = torch.compile(model) if compiled else model
    for update, (inputs, targets) in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = 6e-4 * 0.5 * (1.0 + math.cos(math.pi * update / len(batches)))
        x, y = inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = criterion(forward(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if update % 10 == 0:
            loss.item()


def by_trueloop(model: nn.Module, batches: TimedBatches, *, watched: bool = False, **settings: Any) -> None:
    """Train with trueloop, with the same optimizer and precision."""
    config = TrainConfig(
        epochs=1,
        device=str(batches.device),
        precision="bf16",
        optim=OptimConfig(lr=6e-4, weight_decay=0.1, betas=(0.9, 0.95)),
        schedule=ScheduleConfig(name="cosine"),
        **settings,
    )
    watching: AbstractContextManager[Any] = trueloop.watch() if watched else nullcontext()
    with watching:
        Trainer(model=model, objective=nn.CrossEntropyLoss(), config=config).fit(batches)


def train(
    system: Callable[[nn.Module, TimedBatches], None],
    size: Size,
    device: torch.device,
    peaks: dict[str, float],
    name: str,
) -> Cost:
    """Train a new model once, record its peak memory in ``peaks``, and return the mean cost of an update."""
    batches, model = TimedBatches(size, device), size.model()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    system(model, batches)
    if device.type == "cuda":
        peaks[name] = torch.cuda.max_memory_allocated(device) / 2**20
    return batches.cost


def forward_only(size: Size, device: torch.device, context: Callable[[], AbstractContextManager[Any]]) -> Cost:
    """Time forward passes under `no_grad` or `inference_mode`."""
    model = size.model().to(device).eval()
    batches = TimedBatches(size, device)
    with context(), torch.autocast(device.type, dtype=torch.bfloat16):
        for inputs, _targets in batches:
            model(inputs.to(device, non_blocking=True))
    return batches.cost


def product_rate(device: torch.device, side: int) -> float:
    """Return the floating-point operations per second of a large bf16 matrix product, the device's practical limit."""
    a, b = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    best = math.inf
    for _ in range(10):
        synchronize(device)
        started = time.perf_counter()
        a @ b
        synchronize(device)
        best = min(best, time.perf_counter() - started)
    return 2 * side**3 / best


def measure(size: Size, device: torch.device) -> tuple[dict[str, SideBySide], dict[str, float]]:
    """Measure everything; return the times, and the peak memory of each system in MiB."""
    peaks: dict[str, float] = {}
    systems: dict[str, Callable[[nn.Module, TimedBatches], None]] = {
        NANO: by_nanogpt,
        NANO_COMPILED: partial(by_nanogpt, compiled=True),
        OURS: by_trueloop,
        OURS_COMPILED: partial(by_trueloop, compile=True),
        WATCHED: partial(by_trueloop, watched=True),
        RECOMPUTED: partial(by_trueloop, recompute=True),
    }
    trained = {name: partial(train, system, size, device, peaks, name) for name, system in systems.items()}
    without_graph = {
        "no_grad": partial(forward_only, size, device, torch.no_grad),
        "inference_mode": partial(forward_only, size, device, torch.inference_mode),
    }
    return {
        "training": interleave(trained, size.rounds),
        "forward only": interleave(without_graph, size.rounds),
    }, peaks


def main() -> None:
    """Measure on a CUDA device, or a toy model on any device."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="a toy model, on any device; nothing is saved")
    parser.add_argument("--quick", action="store_true", help="few updates and rounds; nothing is saved")
    arguments = parser.parse_args()
    if not torch.cuda.is_available() and not arguments.tiny:
        console.print("Skipped: there is no CUDA device (--tiny runs a toy model on the CPU).")
        return
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    size = TINY if arguments.tiny else replace(Size(), updates=30, rounds=1) if arguments.quick else Size()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True  # as nanoGPT sets them
    measured, peaks = measure(size, device)
    rate, flops = product_rate(device, 64 if arguments.tiny else 8192), size.flops()
    trained = measured["training"]
    content: dict[str, Any] = {"training": {}, "forward only": {}}
    rows: list[list[str]] = []
    for name in trained.costs:
        cost = trained.cost(name)
        share = flops / cost.median / rate
        content["training"][name] = {
            "seconds_per_update": cost, "ratio_to": {NANO: trained.ratio(name, NANO), OURS: trained.ratio(name, OURS)},
            "share_of_product_rate": share, "peak_mib": peaks.get(name),
        }  # fmt: skip
        memory = f"{peaks[name]:,.0f}" if name in peaks else ""
        rows.append([name, f"{1 / cost.median:.2f}", str(trained.ratio(name, NANO)), f"{share:.1%}", memory])
    table(
        f"{size.layers} blocks of width {size.width}, {size.batch} rows of {size.length} tokens, bf16, on {device}",
        ["system", "updates/s", f"time / {NANO}", "of a matrix product's rate", "peak MiB"], rows,
    )  # fmt: skip
    forward = measured["forward only"]
    console.print(f"forward only: inference_mode / no_grad = {forward.ratio('inference_mode', 'no_grad')}")
    content["forward only"] = {"inference_mode / no_grad": forward.ratio("inference_mode", "no_grad")}
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    settings = {"device": name, "product_flops_per_s": rate, "flops_per_update": flops}
    write("gpu", {"settings": settings, "found": content}, quick=arguments.tiny or arguments.quick)


if __name__ == "__main__":
    main()
