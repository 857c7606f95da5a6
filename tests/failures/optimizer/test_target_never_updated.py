"""OPT013: target networks that are copied once and never updated."""

import pytest

AGENT = """
import copy
import torch
import torch.nn.functional as F

class Agent:
    def __init__(self, net, gamma=0.99):
        self.q = net
        self.gamma = gamma
        {create}
        self.optimizer = torch.optim.Adam(self.q.parameters(), lr=1e-3)

    def targets(self, reward, after, done):
        with torch.no_grad():
            return reward + self.gamma * (1 - done) * self.q_target(after).max(1).values

    def learn(self, batch):
        state, action, reward, after, done = batch
        loss = F.mse_loss(self.q(state).gather(1, action).squeeze(1), self.targets(reward, after, done))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
"""
LOADED = "self.q_target = type(net)()\n        self.q_target.load_state_dict(self.q.state_dict())"
COPIED = "self.q_target = copy.deepcopy(net).eval()"
MARK = "  # <- OPT013"
LOOP = """
import copy
import torch
from torch import nn

def train(buffer, q):
    target = copy.deepcopy(q){mark}
    for p in target.parameters():
        p.requires_grad = False
    optimizer = torch.optim.Adam(q.parameters(), lr=1e-3)
    for step in range(1000):
        s, a, r, s2, d = buffer.sample(32)
        y = r + 0.99 * (1 - d) * target(s2).max(1)[0]
        loss = nn.functional.smooth_l1_loss(q(s).gather(1, a).squeeze(1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
{after}
"""
UPDATED = {
    "loaded": "        if step % 100 == 0:\n            target.load_state_dict(q.state_dict())",
    "mixed": "        for t, p in zip(target.parameters(), q.parameters()):\n            t.data.lerp_(p.data, 0.005)",
    "by a function": "        soft_update(target, q, 0.005)",
    "copied again": "        if step % 100 == 0:\n            target = copy.deepcopy(q)",
    "returned": "    return target",
}
MAIN = """
def run(net, buffer):
    agent = Agent(net)
    for step in range(1000):
        agent.learn(buffer.sample(32))
"""
METHODS = {
    "in a method": """
    def sync(self):
        self.q_target.load_state_dict(self.q.state_dict())
""",
    "from outside": """
def main(agent, buffer):
    for step in range(1000):
        agent.learn(buffer.sample())
        soft_update(agent.q, agent.q_target)
""",
}
RND = """
import torch
from torch import nn

def train(loader, make):
    target, predictor = make(), make()
    optimizer = torch.optim.Adam(predictor.parameters(), lr=1e-3)
    for x in loader:
        loss = (predictor(x) - target(x).detach()).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    "script",
    [
        AGENT.format(create=LOADED + MARK) + MAIN,
        AGENT.format(create=COPIED.replace("(net)", "(self.q)") + MARK) + MAIN,
        LOOP.format(mark=MARK, after=""),
    ],
    ids=["loaded in a class", "copied in a class", "a function"],
)
def test_lint_reports_a_target_that_is_never_updated(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize(
    "script",
    [
        *(LOOP.format(mark="", after=after) for after in UPDATED.values()),
        *(AGENT.format(create=LOADED) + more + MAIN for more in METHODS.values()),
        LOOP.format(mark="", after="").replace("target", "teacher"),
        RND,
        AGENT.format(create=LOADED),
    ],
    ids=[*UPDATED, *METHODS, "a teacher", "a random target", "a class for another file"],
)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(script, "OPT013")
