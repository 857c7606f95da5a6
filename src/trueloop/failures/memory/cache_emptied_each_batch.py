"""``torch.cuda.empty_cache()`` is called after every batch.

What you see
    Training is slower, by a few per cent or even several times. The peak memory does not change.

Why it happens
    PyTorch keeps freed memory for the next allocation. ``torch.cuda.empty_cache()`` waits for the GPU and returns this
    memory to the driver. The next forward pass must then request the memory again, block by block.

Fix
    Delete the call. If the memory is fragmented, set this option of the allocator instead:

        export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True

When this is fine
    - You call it once per epoch, before an evaluation, or after an out-of-memory error, where it costs little.
    - You call it rarely, against fragmentation or to free memory for another program on the same GPU.

How it is detected
    Only the linter finds it, from the source code: the call has no condition and runs in each iteration of a loop that
    also calls ``backward()``. The results are correct but slow, so this is a note.

References
    torch.cuda.empty_cache, https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory.empty_cache.html
    huggingface/transformers#31372, "cuda.empty_cache in trainer.py slow down training", taken out again by #31530:
    "This line caused training slowdowns", https://github.com/huggingface/transformers/issues/31372
"""

import ast
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.operations import OpKind
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.source_text import Fix
from trueloop.failures.failure import Failure, Rule, Severity, changed

EMPTY_CACHE_CALLS: Final = frozenset(
    f"torch.{device}.empty_cache"
    for device in ("cuda", "cuda.memory", "mps", "xpu", "xpu.memory", "accelerator.memory")
)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each ``empty_cache`` call that runs as often as a backward pass."""
    for call in source.ops(OpKind.TORCH_CALL):
        if call.name not in EMPTY_CACHE_CALLS or not call.loops:
            continue
        for backward in source.ops_of_run(call):
            if backward.kind is OpKind.BACKWARD and backward.same_iteration_as(call) and call.implied_by(backward):
                deletion = source.remove_statement(call)
                yield Hit(
                    message=f"`{ast.unparse(call.node)}` is called in every iteration, which slows down training.",
                    node=call.node,
                    related=((backward.node, "`backward()` in the same loop"),),
                    fix=Fix((deletion,), safe=True, description="Delete the call") if deletion else None,
                )
                break


RULE = Rule(required_words=("empty_cache", "backward("), find=find)

BAD = """
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
"""

FAILURE = Failure(
    code="MEM004",
    title="empty_cache is called after every batch",
    severity=Severity.NOTE,
    bad=BAD,
    good=changed(BAD, {"    torch.cuda.empty_cache()": "torch.cuda.empty_cache()"}),
    fix="Delete the call, or move it out of the loop.",
    rule=RULE,
)
