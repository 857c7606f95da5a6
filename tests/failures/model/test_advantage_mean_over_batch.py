"""MDL036: dueling networks that subtract the mean advantage of the batch."""

import pytest

START = """
import torch
from torch import nn
import torch.nn.functional as F

class Net(nn.Module):
    def __init__(self, n, actions):
        super().__init__()
        self.body = nn.Linear(n, 64)
        self.value = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))
        self.advantage = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, actions))

    def forward(self, x):
        h = F.relu(self.body(x))
"""
FAULTY = {
    "in one line": START + "        return self.value(h) + self.advantage(h) - self.advantage(h).mean()  # <- MDL036\n",
    "in brackets": START
    + """
        V, A = self.value(h), self.advantage(h)
        return V + (A - A.mean())  # <- MDL036
""",
    "a variable for the mean": START
    + """
        adv = self.advantage(h)
        mean = torch.mean(adv)  # <- MDL036
        q = self.value(h) + adv - mean
        return q
""",
    "centred before": START
    + """
        adv = self.advantage(h)
        adv = adv - adv.mean()  # <- MDL036
        return adv + self.value(h)
""",
    "over the states": START
    + """
        adv = self.advantage(h)
        return self.value(h) + adv - adv.mean(dim=0, keepdim=True)  # <- MDL036
""",
    "in place": START
    + """
        val, adv = self.value(h), self.advantage(h)
        adv -= adv.mean()  # <- MDL036
        return val + adv
""",
    "expanded": START
    + """
        val, adv = self.value(h).expand(x.size(0), 4), self.advantage(h)
        return val + adv - adv.mean().expand_as(adv)  # <- MDL036
""",
    "the maximum": START
    + """
        adv = self.advantage(h)
        return self.value(h) + (adv - torch.max(adv))  # <- MDL036
""",
    "other names": START.replace("self.value =", "self.left =").replace("self.advantage =", "self.right =")
    + """
        base, extra = self.left(h), self.right(h)
        return base + extra - extra.mean()  # <- MDL036
""",
    "a function": """
import torch

def combine(value, advantage):
    return value + advantage - advantage.mean()  # <- MDL036

def loss_of(net, batch):
    h = net.body(batch.states)
    q = combine(net.value(h), net.advantage(h)).gather(1, batch.actions)
    return ((q - batch.returns) ** 2).mean()
""",
}
CORRECT = {
    "over the actions": START
    + """
        adv = self.advantage(h)
        return self.value(h) + adv - adv.mean(dim=1, keepdim=True)
""",
    "over the last dimension": START
    + """
        adv = self.advantage(h)
        return self.value(h) + (adv - torch.mean(adv, -1, True))
""",
    "the maximum over the actions": START
    + """
        adv = self.advantage(h)
        return self.value(h) + adv - adv.max(1, keepdim=True)[0]
""",
    "normalised by PPO": """
import torch
def update(batch, agent, optimizer):
    adv = batch.returns - batch.values
    adv = (adv - adv.mean()) / (adv.std() + 1e-8)
    loss = -(agent.ratio(batch) * adv).mean() + 0.5 * agent.value_loss(batch)
    loss.backward()
""",
    "centred returns": """
import torch
def advantages(returns, values, batch):
    adv = returns - values
    adv = adv - adv.mean()
    return adv, adv + values
""",
    "the contrast of the raw input": """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 1)
    def forward(self, x):
        x = x - x.mean()
        return self.head(x)
""",
    "a single state": START
    + """
        adv = self.advantage(h)
        return self.value(h) + adv - adv.mean()

net = Net(4, 2)
for step in range(1000):
    q = net(torch.as_tensor(state))[action]
    loss = (q - target) ** 2
    loss.backward()
""",
    "a value loss": """
import torch
def loss(values, returns, adv, logp, batch):
    value_loss = (returns - values).pow(2).mean()
    policy_loss = (logp * (adv - adv.mean())).mean()
    return value_loss - policy_loss
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_mean_of_the_batch(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_means_over_the_actions_and_other_centred_values(lint_is_clean, script):
    lint_is_clean(script, "MDL036")


STREAMS = """
import torch
from torch import nn

class Dueling(nn.Module):
    def __init__(self, actions):
        super().__init__()
        self.body = nn.Linear(4, 32)
        self.value = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
        self.advantage = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, actions))
        self.map_value = Timed(nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.ConvTranspose2d(8, 1, 4), nn.ReLU()))
        self.map_advantage = Timed(nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.ConvTranspose2d(8, actions, 4)))

    def forward(self, x):
        h = self.body(x)
"""
ONE_OUTPUT = {
    "exchanged": """
        v, a = self.value(h), self.advantage(h)
        return a + v - v.mean(1, keepdim=True)  # <- MDL036
""",
    "maps": """
        adv = self.map_value(h)
        return self.map_advantage(h) + adv - adv.mean(2, keepdim=True)  # <- MDL036
""",
    "a function": """
        value = self.value(h)
        out = value + self.advantage(h) - torch.mean(value, dim=-1, keepdim=True)  # <- MDL036
        return out
""",
}
SEVERAL_OUTPUTS = {
    "the advantages": """
        v, a = self.value(h), self.advantage(h)
        return v + a - a.mean(1, keepdim=True)
""",
    "maps of the advantages": """
        adv = self.map_advantage(h)
        return self.map_value(h) + adv - adv.mean(2, keepdim=True)
""",
    "centred features": """
        return h - h.mean(1, keepdim=True)
""",
    "an unknown layer": """
        v = self.other(h)
        return self.advantage(h) + v - v.mean(1, keepdim=True)
""",
}


@pytest.mark.parametrize("body", ONE_OUTPUT.values(), ids=ONE_OUTPUT)
def test_lint_reports_the_mean_of_one_output(lint_reports, body):
    assert "the only output" in lint_reports(STREAMS + body)[0].message


@pytest.mark.parametrize("body", SEVERAL_OUTPUTS.values(), ids=SEVERAL_OUTPUTS)
def test_lint_accepts_means_of_several_outputs(lint_is_clean, body):
    lint_is_clean(STREAMS + body, "MDL036")
