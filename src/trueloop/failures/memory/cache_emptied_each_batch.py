"""The cache of CUDA memory is emptied after every batch.

What you see
    Training is slower, by a few per cent up to several times, and the memory in use at its peak is the same.

Why it happens
    torch keeps freed memory for the next allocation. ``torch.cuda.empty_cache()`` waits for the device and gives that
    memory back to the driver, which the next forward asks for again, block by block.

Fix
    Take it out. Against fragmentation set ``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True``.

When this is fine
    Once in an epoch, before an evaluation, or after an out-of-memory error it costs next to nothing, and may help
    against fragmentation or a neighbour on the same device. It is a note, in the text only: reported where it comes
    without a condition in the same turn of the same loop as a backward.

References
    torch.cuda.empty_cache, https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory.empty_cache.html
    huggingface/transformers#31372, "cuda.empty_cache in trainer.py slow down training", taken out again by #31530:
    "This line caused training slowdowns", https://github.com/huggingface/transformers/issues/31372
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from trueloop.analysis.operations import OpKind
from trueloop.analysis.source_file import Hit, Source
from trueloop.core.source_text import Fix
from trueloop.failures.failure import Failure, Rule, Severity

EMPTYING: Final = frozenset(
    f"torch.{device}.empty_cache"
    for device in ("cuda", "cuda.memory", "mps", "xpu", "xpu.memory", "accelerator.memory")
)


def find(source: Source) -> Iterator[Hit]:
    """Yield each emptying that happens as often as a backward does."""
    for emptied in source.acts(OpKind.TORCH):
        if emptied.word not in EMPTYING or not emptied.loops:
            continue
        for backward in source.run_of(emptied):
            if backward.act is OpKind.BACKWARD and backward.beside(emptied) and emptied.implied_by(backward):
                gone = source.taken_out(emptied)
                yield Hit(
                    message="The cache of device memory is emptied in every turn of the training loop.",
                    node=emptied.node,
                    related=((backward.node, "as often as this backward"),),
                    fix=Fix((gone,), safe=True, words="Take it out") if gone else None,
                )
                break


RULE = Rule(words=("empty_cache", "backward("), find=find)

FAILURE = Failure(
    code="MEM004",
    title="The memory cache is emptied after every batch",
    severity=Severity.NOTE,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn

x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    torch.cuda.empty_cache()
""",
    good="""
import torch
from torch import nn

x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
torch.cuda.empty_cache()
""",
    fix="Take it out of the loop.",
    rule=RULE,
)
