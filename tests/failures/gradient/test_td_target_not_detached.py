"""GRD026: targets of TD learning that get a gradient."""

import pytest

HEAD = """
import copy
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
states, actions = torch.randn(128, 4), torch.randint(2, (128, 1))
rewards, next_states = states.sum(1), states + 0.1 * torch.randn(128, 4)
dones = (torch.rand(128) < 0.2).float()
q_net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
target_net = copy.deepcopy(q_net)
critic = nn.Linear(4, 1)
optimizer = torch.optim.Adam([*q_net.parameters(), *critic.parameters()])
gamma = 0.99
def train(loss_of):
    for step in range(8):
        i = torch.randint(128, (32,))
        optimizer.zero_grad()
        loss_of(i).backward()
        optimizer.step()
"""
Q = "q_net(states[i]).gather(1, actions[i]).squeeze(1)"
FAULTY = {
    "the mask first": f"""
def loss_of(i):
    target = rewards[i] + (1 - dones[i]) * gamma * q_net(next_states[i]).max(1)[0]
    return F.mse_loss({Q}, target)
train(loss_of)
""",
    "a column": """
def loss_of(i):
    best = q_net(next_states[i]).amax(1, keepdim=True)
    target = rewards[i, None] + gamma * best
    return nn.HuberLoss()(q_net(states[i]).gather(1, actions[i]), target)
train(loss_of)
""",
    "a critic": """
def loss_of(i):
    value, following = critic(states[i]).squeeze(-1), critic(next_states[i]).squeeze(-1)
    return F.mse_loss(value, rewards[i] + gamma * following * (1 - dones[i]))
train(loss_of)
""",
    "the target first": f"""
def loss_of(i):
    target = gamma * q_net(next_states[i]).max(1).values + rewards[i]
    return F.smooth_l1_loss(target, {Q})
train(loss_of)
""",
}
CORRECT = {
    "no_grad": f"""
def loss_of(i):
    with torch.no_grad():
        target = rewards[i] + gamma * q_net(next_states[i]).max(1).values * (1 - dones[i])
    return F.mse_loss({Q}, target)
train(loss_of)
""",
    "detach": f"""
def loss_of(i):
    target = rewards[i] + gamma * q_net(next_states[i]).max(1).values
    return F.mse_loss({Q}, target.detach())
train(loss_of)
""",
    "another network": f"""
def loss_of(i):
    target = rewards[i] + gamma * target_net(next_states[i]).max(1).values
    return F.mse_loss({Q}, target)
train(loss_of)
""",
    "two views": """
def loss_of(i):
    return F.mse_loss(q_net(states[i]), q_net(next_states[i]))
train(loss_of)
""",
    "a residual": """
def loss_of(i):
    hidden = q_net(states[i])
    return F.mse_loss(hidden, states[i, :2] + 2 * critic(hidden.repeat(1, 2)))
train(loss_of)
""",
    "returns": f"""
def loss_of(i):
    return F.mse_loss({Q}, rewards[i] * gamma)
train(loss_of)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_a_target_with_a_graph_is_reported(run, script):
    assert "GRD026" in {each.code for each in run(HEAD + script).findings}


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_other_targets_are_accepted(run, script):
    assert "GRD026" not in {each.code for each in run(HEAD + script).findings}
