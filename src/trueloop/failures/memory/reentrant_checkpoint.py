"""Activation checkpointing uses the old "reentrant" variant, which has more restrictions than the new one.

What you see
    Often nothing. If no input of the checkpointed part requires a gradient, its parameters silently get no gradients.
    ``torch.autograd.grad``, hooks, nested inputs and a module that is used twice do not work, with or without an error.

Why it happens
    ``use_reentrant=True`` is the default. It runs a second backward pass inside the backward pass. Newer versions of
    PyTorch warn if ``use_reentrant`` is not passed, because its default will change.

Fix
    The non-reentrant variant gives the same values and gradients, without these restrictions.

        checkpoint(function, x, use_reentrant=False)

When this is fine
    - ``use_reentrant`` is passed in ``**kwargs``.
    - You have tested your model with the reentrant variant.

How it is detected
    Only the linter finds it, from the source code, and only if you select this rule: ``checkpoint`` or
    ``checkpoint_sequential`` is called without ``use_reentrant`` or with ``use_reentrant=True``. The reentrant variant
    often works, so this is a note.

References
    torch.utils.checkpoint, with the list of differences, https://docs.pytorch.org/docs/stable/checkpoint.html
    Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016, arXiv:1604.06174
"""

import ast
from collections.abc import Iterator

from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.source_text import Edit, Fix
from trueloop.failures.failure import Failure, Rule, Severity, changed


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the calls of a checkpoint function without ``use_reentrant`` or with True."""
    for call in source.calls_of("torch.utils.checkpoint.checkpoint", "torch.utils.checkpoint.checkpoint_sequential"):
        value = next((each.value for each in call.keywords if each.arg == "use_reentrant"), None)
        forwards_kwargs = any(each.arg is None for each in call.keywords)
        if value is None and not forwards_kwargs:
            end = max(source.text.span(each)[1] for each in (*call.args, *(each.value for each in call.keywords)))
            edit, message = (
                Edit(end, end, ", use_reentrant=False"),
                "`use_reentrant` has its default, True: the old variant.",
            )
        elif isinstance(value, ast.Constant) and value.value is True:
            edit, message = (
                source.text.replace(value, "False"),
                "`use_reentrant=True` selects the old variant of checkpointing.",
            )
        else:
            continue
        yield Hit(message=message, node=call, fix=Fix((edit,), safe=False, description="Pass use_reentrant=False"))


RULE = Rule(required_words=("checkpoint", "torch.utils"), find=find, opt_in=True)

BAD = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

body = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 8))
head = nn.Linear(8, 1)
optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.01)
for step in range(10):
    x = torch.randn(32, 8, requires_grad=True)
    optimizer.zero_grad()
    loss = head(checkpoint(body, x, use_reentrant=True)).pow(2).mean()
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="MEM003",
    title="Activation checkpointing uses the reentrant variant",
    severity=Severity.NOTE,
    bad=BAD,
    good=changed(
        BAD,
        {
            "x = torch.randn(32, 8, requires_grad=True)": "x = torch.randn(32, 8)",
            "loss = head(checkpoint(body, x, use_reentrant=True)).pow(2).mean()": (
                "loss = head(checkpoint(body, x, use_reentrant=False)).pow(2).mean()"
            ),
        },
    ),
    fix="Pass use_reentrant=False.",
    rule=RULE,
)
