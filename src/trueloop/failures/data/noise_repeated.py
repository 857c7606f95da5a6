"""The generator gets the same noise in every step, because it is drawn before the loop.

What you see
    The generator makes the samples of one batch well, and nonsense for new noise. The discriminator soon knows them.

Why it happens
    ``z = torch.randn(...)`` before the loop is drawn once. In the loop the variable has the same numbers in every step.

Fix
    Draw the noise in each step:

        for real in loader:
            z = torch.randn(len(real), latent)
            fake = generator(z)

When this is fine
    - Fixed noise is used only to look at the progress, without gradients.
    - The noise is trained itself, or the network fits one image from it, without a discriminator.

How it is detected
    Only the linter finds it: in a program with a discriminator or critic, a loop that trains passes a variable from
    ``torch.randn`` or ``torch.rand`` to a network, and neither the loop nor a function in it changes the variable.
    Names such as ``fixed_noise`` and calls under a condition or ``no_grad`` are left out.

References
    PyTorch tutorial "DCGAN", https://docs.pytorch.org/tutorials/beginner/dcgan_faces_tutorial.html
"""

import ast
import re
from collections.abc import Iterator
from itertools import takewhile
from typing import Any, Final

from trueloop.analysis.queries.possible_values import enclosing_nodes, possible_values
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_NETWORK: Final = re.compile(r"(^|_|\.)(g|gen|generator|net_?g|g_net|decoder)$", re.IGNORECASE)
_ADVERSARY: Final = re.compile(r"disc|critic|adversar|\bD\w?\(|net_?D\b", re.IGNORECASE)
_FIXED: Final = re.compile(r"fix|test|eval|val|sample|vis|viz|const|plot", re.IGNORECASE)
_DRAWS: Final = frozenset(("randn", "rand", "normal", "randn_like", "rand_like"))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each call of a generator that gets the same noise in every step of a training loop."""
    if not _ADVERSARY.search(source.text.source):
        return
    for loop in source.nodes_of(ast.For, ast.While):
        calls = list(nodes_in(loop, ast.Call))
        if not {"backward", "step"} <= {last_name(each.func) for each in calls}:
            continue
        for call in calls:
            if not _NETWORK.search(ast.unparse(call.func)) or _is_conditional(source, call, loop):
                continue
            drawn = next(
                (found for each in call.args if (found := _drawn_before(source, each, loop)) is not None), None
            )
            if drawn is not None:
                yield Hit(
                    message=f"`{ast.unparse(call)}` gets the same noise in every step: `{ast.unparse(drawn)}` is drawn "
                    "once, before the loop.",
                    node=call,
                    related=((drawn, "drawn here"),),
                )


def _drawn_before(source: SourceFile, noise: ast.expr, loop: Any) -> ast.Call | None:
    """Return the call that draws the noise before a loop; None if the loop changes it, or it is something else."""
    if not isinstance(noise, ast.Name) or _FIXED.search(noise.id):
        return None
    for use in nodes_in(loop, ast.Name):
        around = source.parents.get(id(use))
        is_method = isinstance(around, ast.Attribute) and around.attr.endswith("_")
        if use.id == noise.id and (not isinstance(use.ctx, ast.Load) or is_method):
            return None
    values = possible_values(source, noise)
    calls = [each for each in values if isinstance(each, ast.Call) and last_name(each.func) in _DRAWS]
    is_plain = len(calls) == len(values) == 1 and not any(each.arg == "requires_grad" for each in calls[0].keywords)
    return calls[0] if is_plain and calls[0] not in nodes_in(loop, ast.Call) else None


def _is_conditional(source: SourceFile, node: ast.AST, loop: ast.AST) -> bool:
    """Return True if a node in a loop is under a condition or a ``with torch.no_grad()``."""
    return any(
        isinstance(each, ast.If) or (isinstance(each, ast.With) and "grad" in ast.unparse(each.items[0]))
        for each in takewhile(lambda each: each is not loop, enclosing_nodes(source, node))
    )


RULE = Rule(required_words=("randn|rand(|normal(", ".backward(", "isc|ritic|dversar|D("), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
critic = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))
generator_optimizer = torch.optim.Adam(generator.parameters(), lr=0.001)
critic_optimizer = torch.optim.Adam(critic.parameters(), lr=0.001)
bce = nn.BCEWithLogitsLoss()
real_labels, fake_labels = torch.ones(16, 1), torch.zeros(16, 1)
z = torch.randn(16, 4)
for step in range(20):
    real = torch.randn(16, 2) + 2
    fake = generator(z)
    critic_optimizer.zero_grad()
    (bce(critic(real), real_labels) + bce(critic(fake.detach()), fake_labels)).backward()
    critic_optimizer.step()
    generator_optimizer.zero_grad()
    bce(critic(fake), real_labels).backward()
    generator_optimizer.step()
"""

FAILURE = Failure(
    code="DAT042",
    title="The generator gets the same noise in every step",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "z = torch.randn(16, 4)\nfor step in range(20):\n": "for step in range(20):\n    z = torch.randn(16, 4)\n",
        },
    ),
    fix="Draw the noise within the loop.",
    rule=RULE,
)
