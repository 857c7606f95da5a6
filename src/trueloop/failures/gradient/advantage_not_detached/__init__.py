"""The policy loss also trains the critic, because the advantage is not detached.

What you see
    The value loss falls slowly or rises, and the policy learns worse than expected: the critic is trained to make the
    advantage of likely actions small or large instead of to predict the return.

Why it happens
    The policy loss is ``log_prob * advantage``, and the advantage is computed from the critic's value. PyTorch
    differentiates both factors, so the policy loss has a gradient for the critic too.

Fix
    The advantage is a weight for the policy: detach it.

        advantage = (returns - values).detach()
        policy_loss = -(log_probs * advantage).mean()
        value_loss = nn.functional.mse_loss(values, returns)

When this is fine
    - The advantage was computed under ``torch.no_grad()``, or stored as numbers.
    - The other operand of the value loss, the return or target, is not detached: it has no graph of the trained critic,
      because it went through NumPy or a library, or comes from a target network.
    - The critic is trained by the product alone, as in some estimators that learn a control variate.
    - A learned temperature is multiplied with a log-probability.
    - A mixture of densities multiplies its weights with densities.

How it is detected
    In the graph of the loss, the sanitizer looks for a product of the ``log_prob`` of a distribution and another factor
    with a graph. It reports the product if the other factor leads to matrices that the log-probability does not lead to
    and that the loss also reaches by another way, as a critic with a value loss, in 3 backward passes.

    The linter reports the factor of a log-probability or ratio that is computed, without ``detach()``, ``.item()`` or
    ``torch.no_grad()``, from the same values of a critic that a squared or smooth error in the same loss trains. If
    both operands of the error are values, it takes the one that is an output of a model or that the factor detaches.

References
    Mnih et al., "Asynchronous Methods for Deep Reinforcement Learning", 2016, arXiv:1602.01783
    torch.distributions, score function, https://docs.pytorch.org/docs/stable/distributions.html
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from trueloop.analysis.program_files import parse_files
from trueloop.core.findings import Evidence, SourceLocation
from trueloop.core.formatting import first_few
from trueloop.core.source_text import nodes_in
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.gradient.advantage_not_detached.undetached import find_undetached
from trueloop.tracing.events import CodePosition, Event, Refs

MIN_TIMES: Final = 3
_FACTOR: Final = re.compile(r"adv|delta|td_err|gae", re.IGNORECASE)
_LOG: Final = re.compile(r"log|ratio|surr", re.IGNORECASE)


@dataclass(slots=True, kw_only=True, eq=False)
class AdvantageInGraph(Event):
    """A loss has a product of a log-probability and a factor that trains another network."""

    parameters: Refs
    """Parameters of the other network."""
    log_prob: CodePosition | None
    """Where the program called ``log_prob``."""


class Detector(BaseDetector):
    """Counts the backward passes that train a critic by the policy loss."""

    def __init__(self) -> None:
        self._times = 0

    def on_advantage_in_graph(self, event: AdvantageInGraph) -> Evidence | None:
        """Return evidence at the third backward pass."""
        self._times += 1
        if self._times != MIN_TIMES:
            return None
        names = sorted(each.name for each in event.parameters)
        files = [each.source_location.path for each in (event.log_prob, event.location) if each]
        product = next(_products(files), None)
        text = f"`{product[1]}`" if product else "a log-probability times the advantage"
        return Evidence(
            message=f"The policy loss ({text}) also has a gradient for the critic: the advantage is not detached, so "
            f"the policy trains {first_few(names)} in addition to the value loss.",
            location=product[0] if product else event.location,
        )

    def inconclusive(self) -> str:
        """Return a reason if there was no such product."""
        return "" if self._times else "no loss had a product of a log-probability and another graph"


def _products(files: list[str]) -> Iterator[tuple[SourceLocation, str]]:
    """Yield the products that name a logarithm or ratio, first those that also name an advantage, in file order."""
    found: list[tuple[int, int, SourceLocation, str]] = []
    for order, file in enumerate(dict.fromkeys(files)):
        for tree in (parse_files([file]) or {}).values():
            for node in nodes_in(tree, ast.BinOp):
                if isinstance(node.op, ast.Mult):
                    text = ast.unparse(node)
                    if _LOG.search(text):
                        rank = 0 if _FACTOR.search(text) else 1
                        found.append((rank, order, SourceLocation(file, node.lineno), text))
    yield from ((location, text) for _, _, location, text in sorted(found))


RULE = Rule(
    required_words=(
        "log_prob|logp|log_pi|ratio|log_softmax|cross_entropy",
        "value|critic|baseline|Critic|Value",
        "adv|Adv|policy|Policy|actor|Actor",
        "backward|training_step",
        "mse|smooth_l1|SmoothL1|MSE|huber|Huber|pow(|square(|** 2|**2",
    ),
    find=find_undetached,
)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
actor = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
critic = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=0.003)
for step in range(10):
    states = torch.randn(32, 4)
    policy = torch.distributions.Categorical(logits=actor(states))
    actions = policy.sample()
    returns = (actions == (states[:, 0] > 0)).float()
    values = critic(states).squeeze(1)
    advantage = returns - values
    policy_loss = -(policy.log_prob(actions) * advantage).mean()
    loss = policy_loss + nn.functional.mse_loss(values, returns)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="GRD017",
    title="The advantage is not detached in the policy loss",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"advantage = returns - values": "advantage = (returns - values).detach()"}),
    fix="Detach the advantage: `advantage = (returns - values).detach()`.",
    rule=RULE,
    detector=Detector,
)
