"""The target of Q-learning, or of a critic, gets a gradient: it is computed by the trained network with its graph.

What you see
    The values learn slowly, or settle at wrong numbers, although the loss is small.

Why it happens
    In ``reward + gamma * q(next_state).max()`` the value of the next state is a fixed target. With its graph, each
    update also changes it: the loss falls as well if the value of the next state moves towards the prediction, which
    is the wrong direction in time. Q-learning and TD learning do not use this gradient.

Fix
    Compute the target without a graph:

        with torch.no_grad():
            target = rewards + gamma * q(next_states).max(1).values * (1 - dones)

    A separate target network, a copy that is updated now and then, makes the training more stable, too.

When this is fine
    - Residual-gradient methods use both gradients on purpose.
    - The target comes from another network whose parameters are not trained by this loss.

How it is detected
    In a run, the sanitizer reports a squared, Huber or smooth L1 loss of PyTorch of which both sides have a graph to
    the same parameters, if one side is a constant plus a product with a factor from 0.8 to 1, and the program has words
    such as reward, discount, critic or Q. Squared errors that are written by hand are not checked.

References
    Sutton and Barto, "Reinforcement Learning", section 9.3, on semi-gradient methods,
    http://incompleteideas.net/book/the-book-2nd.html
    PyTorch tutorial, "Reinforcement Learning (DQN)",
    https://docs.pytorch.org/tutorials/intermediate/reinforcement_q_learning.html
"""

import re
from collections.abc import Iterator
from typing import Final

from trueloop.core.findings import Evidence
from trueloop.core.source_text import read_source
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.tracing.events import BackwardLosses

_WORDS: Final = re.compile(
    r"reward|discount|gamma|bellman|next_?(s|obs)|(?<![a-z])(q|q_?net|td|dones?|critic)(?![a-z])", re.IGNORECASE
)


class Detector(BaseDetector):
    """Reports losses whose target has a graph to the parameters that they train."""

    def on_backward_losses(self, event: BackwardLosses) -> Iterator[Evidence]:
        """Return evidence for each such loss."""
        for loss in event.losses:
            location = loss.location or event.location
            if loss.bootstraps and location and _WORDS.search(read_source(location.source_location.path)):
                yield Evidence(
                    message="The target of this loss, a reward plus a discounted value, gets a gradient too: the same "
                    "parameters compute both sides. Compute the target under torch.no_grad().",
                    location=location,
                )


BAD = """
import torch
from torch import nn

torch.manual_seed(0)
states = torch.randn(256, 4)
actions = torch.randint(2, (256, 1))
rewards = states.sum(1)
next_states = states + 0.1 * torch.randn(256, 4)
dones = (torch.rand(256) < 0.2).float()
q_net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(q_net.parameters(), lr=0.01)
for step in range(20):
    i = torch.randint(256, (32,))
    target = rewards[i] + 0.9 * q_net(next_states[i]).max(1).values * (1 - dones[i])
    loss = nn.functional.smooth_l1_loss(q_net(states[i]).gather(1, actions[i])[:, 0], target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="GRD026",
    title="The TD target gets a gradient",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {"0.9 * q_net(next_states[i]).max(1).values * (1": "0.9 * q_net(next_states[i]).max(1).values.detach() * (1"},
    ),
    fix="Compute the target under torch.no_grad().",
    detector=Detector,
)
