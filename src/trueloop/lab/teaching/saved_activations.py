"""What a forward keeps in memory, and how long it takes: in train mode, in eval mode, and without a graph.

Memory is counted, not estimated: every storage that an operation makes is followed by a weak reference until it is
gone. It equals the figure of PyTorch's memory profiler (a test compares them), without the profiler's
cost. The process's resident size would not do: the allocator keeps pages of tensors that are gone.
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
    def __init__(self, given):
        super().__init__()
        self.given = {{tensor.untyped_storage()._cdata for tensor in given}}
        self.storages, self.alive_b = {{}}, []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        results = operation(*args, **(kwargs or {{}}))
        for tensor in tree_leaves(results):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self.given:
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
given = [*model.parameters(), *model.buffers(), inputs]
there_already = {{tensor.untyped_storage().data_ptr() for tensor in given}}

ways = {{
    "train()": (True, nullcontext),
    "eval()": (False, nullcontext),
    "eval(), no_grad": (False, torch.no_grad),
    "eval(), inference_mode": (False, torch.inference_mode),
}}
figures, seconds = {{}}, {{name: [] for name in ways}}
for name, (training, context) in ways.items():
    saved = {{}}

    def pack(tensor):
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    model.train(training)
    with context(), Tally(given) as tally, saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = model(inputs)
    for_backward_b = sum(size for place, size in saved.items() if place not in there_already)
    figures[name] = (for_backward_b, tally.now_b(), tally.alive_b)
    del outputs

for turn in range({turns}):
    for name, (training, context) in ways.items():
        model.train(training)
        begun = time.perf_counter()
        with context():
            model(inputs)
        seconds[name].append(time.perf_counter() - begun)

refused = {{}}
for name in ("eval(), no_grad", "eval(), inference_mode"):
    with ways[name][1]():
        outputs = model(inputs)
    try:
        (outputs * model[0].weight.sum()).sum().backward() if "inference" in name else outputs.sum().backward()
    except RuntimeError as error:
        refused[name] = str(error)

for name, (for_backward_b, kept_b, alive_b) in figures.items():
    middle_ms = 1000 * statistics.median(seconds[name])
    kept, highest = kept_b / 2**20, max(alive_b) / 2**20
    print(f"{{name:24}} kept {{kept:6.2f}} MiB, highest {{highest:6.2f}} MiB, {{middle_ms:6.2f}} ms")
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """What is measured."""

    depth: int = 4
    """Blocks of linear, batch normalisation, ReLU and dropout."""
    width: int = 128
    batch: int = 512
    dropout: float = 0.5
    turns: int = 7
    """Forwards that are timed, of each way in turn."""
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to call the model."""

    name: str
    for_backward_b: int
    """Bytes of the tensors that the graph saved, without those that are there anyway: parameters, buffers, inputs."""
    kept_b: int
    """Bytes alive after the forward, the outputs included, while they are held."""
    highest_b: int
    """The most that was alive after any operation."""
    alive_b: tuple[int, ...]
    """After each operation of the forward."""
    median_s: float
    refused: str
    """torch's own words for a backward afterwards; empty where it can be had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """All ways, on the same model and inputs."""

    text: str
    printed: str
    ways: tuple[Way, ...]
    turns: int


def measure(forward: Forward) -> Measured:
    """Run one model in four ways, and measure each.

    Cost: eight forwards in each of four ways, at the defaults.
    """
    text = _PROGRAM.format(
        seed=forward.seed,
        depth=forward.depth,
        width=forward.width,
        batch=forward.batch,
        dropout=repr(forward.dropout),
        turns=forward.turns,
    )
    ran = SnippetRunner()
    with fork_rng(devices=[]):
        ran.run(text)
    ways = tuple(_way(name, ran.names) for name in ran.names["figures"])
    return Measured(text=text, printed="\n".join(ran.printed), ways=ways, turns=forward.turns)


def _way(name: str, program: Mapping[str, Any]) -> Way:
    for_backward_b, kept_b, alive_b = program["figures"][name]
    seconds = sorted(program["seconds"][name])
    return Way(
        name=name,
        for_backward_b=for_backward_b,
        kept_b=kept_b,
        highest_b=max(alive_b),
        alive_b=tuple(alive_b),
        median_s=seconds[len(seconds) // 2],
        refused=program["refused"].get(name, ""),
    )
