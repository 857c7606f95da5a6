"""Measure memory and time of a forward pass in train mode, in eval mode, and without a graph.

Memory is counted, not estimated: a weak reference tracks every storage that an operation creates until the storage is
freed. The result equals that of PyTorch's memory profiler (a test compares them), at a lower cost. The process's
resident size is no substitute: the allocator keeps pages of freed tensors.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from torch.random import fork_rng

from trueloop.lab.teaching.run_snippet import SnippetRunner

_PROGRAM: Final = """\
import statistics
import time
from contextlib import nullcontext

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Tally(TorchDispatchMode):
    # Observes every operation and tracks the memory of its results until it is freed.
    def __init__(self, existing):
        super().__init__()
        self.existing = {{tensor.untyped_storage()._cdata for tensor in existing}}
        self.storages, self.alive_b = {{}}, []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        results = operation(*args, **(kwargs or {{}}))
        for tensor in tree_leaves(results):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self.existing:
                    self.storages[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.alive_b.append(self.now_b())
        return results

    def now_b(self):
        self.storages = {{key: each for key, each in self.storages.items() if not each[0].expired()}}
        return sum(size for _, size in self.storages.values())


torch.manual_seed({seed})
layers = []
for _ in range({depth}):
    layers += [nn.Linear({width}, {width}), nn.BatchNorm1d({width}), nn.ReLU(), nn.Dropout({dropout})]
model = nn.Sequential(*layers)
inputs = torch.randn({batch}, {width})
existing = [*model.parameters(), *model.buffers(), inputs]
existing_storages = {{tensor.untyped_storage().data_ptr() for tensor in existing}}

modes = {{
    "train()": (True, nullcontext),
    "eval()": (False, nullcontext),
    "eval(), no_grad": (False, torch.no_grad),
    "eval(), inference_mode": (False, torch.inference_mode),
}}
figures, seconds = {{}}, {{name: [] for name in modes}}
for name, (training, context) in modes.items():
    saved = {{}}

    def pack(tensor):
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    model.train(training)
    with context(), Tally(existing) as tally, saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = model(inputs)
    for_backward_b = sum(size for address, size in saved.items() if address not in existing_storages)
    figures[name] = (for_backward_b, tally.now_b(), tally.alive_b)
    del outputs

for _ in range({rounds}):
    for name, (training, context) in modes.items():
        model.train(training)
        start = time.perf_counter()
        with context():
            model(inputs)
        seconds[name].append(time.perf_counter() - start)

refused = {{}}
for name in ("eval(), no_grad", "eval(), inference_mode"):
    with modes[name][1]():
        outputs = model(inputs)
    try:
        (outputs * model[0].weight.sum()).sum().backward() if "inference" in name else outputs.sum().backward()
    except RuntimeError as error:
        refused[name] = str(error)

for name, (for_backward_b, kept_b, alive_b) in figures.items():
    median_ms = 1000 * statistics.median(seconds[name])
    kept, peak = kept_b / 2**20, max(alive_b) / 2**20
    print(f"{{name:24}} kept {{kept:6.2f}} MiB, peak {{peak:6.2f}} MiB, {{median_ms:6.2f}} ms")
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """Settings of the measurement."""

    depth: int = 4
    """Number of blocks of Linear, BatchNorm, ReLU and Dropout layers."""
    width: int = 128
    batch: int = 512
    dropout: float = 0.5
    rounds: int = 7
    """Number of timed rounds; each round runs one forward pass per mode."""
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CallMode:
    """One mode to call the model."""

    name: str
    for_backward_b: int
    """Bytes of the tensors that the graph saved, without parameters, buffers and inputs."""
    kept_b: int
    """Bytes alive after the forward pass, including the outputs."""
    peak_b: int
    """Largest number of bytes alive after any operation."""
    alive_b: tuple[int, ...]
    """Bytes alive after each operation of the forward pass."""
    median_s: float
    refused: str
    """PyTorch's error message for a backward pass afterwards; empty if it works."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """All modes, on the same model and inputs."""

    text: str
    printed: str
    modes: tuple[CallMode, ...]
    rounds: int


def measure(forward: Forward) -> Measurement:
    """Call one model in four modes, and measure each.

    Cost: eight forward passes in each of four modes, with the defaults.
    """
    text = _PROGRAM.format(
        seed=forward.seed, depth=forward.depth, width=forward.width, batch=forward.batch,
        dropout=repr(forward.dropout), rounds=forward.rounds,
    )  # fmt: skip
    runner = SnippetRunner()
    with fork_rng(devices=[]):
        runner.run(text)
    modes = tuple(_call_mode(name, runner.variables) for name in runner.variables["figures"])
    return Measurement(text=text, printed="\n".join(runner.printed), modes=modes, rounds=forward.rounds)


def _call_mode(name: str, program: Mapping[str, Any]) -> CallMode:
    for_backward_b, kept_b, alive_b = program["figures"][name]
    seconds = sorted(program["seconds"][name])
    return CallMode(
        name=name,
        for_backward_b=for_backward_b,
        kept_b=kept_b,
        peak_b=max(alive_b),
        alive_b=tuple(alive_b),
        median_s=seconds[len(seconds) // 2],
        refused=program["refused"].get(name, ""),
    )
