"""MDL045: a noisy layer never draws new noise."""

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
"""
LAYER = """
class NoisyLinear(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.mu = nn.Parameter(torch.zeros(m, n))
        self.sigma = nn.Parameter(torch.full((m, n), 0.1))
        self.register_buffer("epsilon", torch.zeros(m, n))
        self.reset_noise()

    def forward(self, x):
        return F.linear(x, self.mu + self.sigma * self.epsilon)

    def reset_noise(self):{layer}
        self.epsilon.copy_(torch.randn_like(self.epsilon))
"""
NETWORK = """

class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = NoisyLinear(4, 16), NoisyLinear(16, 2)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))

    def reset_noise(self):{network}
        self.first.reset_noise()
        self.last.reset_noise()
"""
TRAINING = """

def learn(network, optimizer, batch):
    loss = F.smooth_l1_loss(network(batch.state), batch.target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
MARK = "  # <- MDL045"
FAULTY = {
    "a layer": LAYER.format(layer=MARK) + TRAINING,
    "a network": LAYER.format(layer="") + NETWORK.format(network=MARK) + TRAINING,
    "attributes": """
class Noisy(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(n))
        self.sample_noise()

    def sample_noise(self):  # <- MDL045
        self.eps = torch.randn(self.scale.shape)

    def forward(self, x):
        return x + self.scale * self.eps
"""
    + TRAINING,
    "a function that scales the noise": LAYER.format(layer=MARK).replace(
        "torch.randn_like(self.epsilon)", "self._scale_noise(4)"
    )
    + """
    def _scale_noise(self, size):
        x = torch.randn(size)
        return x.sign() * x.abs().sqrt()
"""
    + TRAINING,
}
PLAIN = LAYER.format(layer="")
WHOLE = PLAIN + NETWORK.format(network="") + TRAINING
CORRECT = {
    "after each update": WHOLE + "    network.reset_noise()\n",
    "in forward": PLAIN.replace("        return F.linear", "        self.reset_noise()\n        return F.linear")
    + TRAINING,
    "by apply": PLAIN
    + TRAINING
    + "    network.apply(lambda m: m.reset_noise() if isinstance(m, NoisyLinear) else None)\n",
    "by name": PLAIN + TRAINING + '    for m in network.modules():\n        getattr(m, "reset_noise", int)()\n',
    "not trained here": PLAIN + NETWORK.format(network=""),
    "in a method of the agent": WHOLE
    + """

class Agent:
    def act(self, state):
        self.network.reset_noise()
        return self.network(state).argmax()
""",
    "an environment": """
class Env:
    def __init__(self):
        self.reset_noise()

    def reset_noise(self):
        self.noise = torch.randn(3)
"""
    + TRAINING,
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_method(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "MDL045")
