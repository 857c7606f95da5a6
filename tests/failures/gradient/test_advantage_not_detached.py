"""GRD017: an advantage with a graph."""

import pytest

HEAD = """
import copy
import torch
from torch import nn

x = torch.randn(160, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))

critic = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD([*model.parameters(), *critic.parameters()], lr=0.01)
"""

FAULTY = {
    "a ratio": """
for step in range(6):
    policy, values = torch.distributions.Categorical(logits=model(x)), critic(x).squeeze(1)
    actions = policy.sample()
    log_prob, returns = policy.log_prob(actions), actions.float()
    ratio = (log_prob - log_prob.detach()).exp()
    loss = -(ratio * (returns - values)).mean() + (returns - values).square().mean()  # <- GRD017
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
}

CORRECT = {
    "detached": """
for step in range(6):
    policy, values = torch.distributions.Categorical(logits=model(x)), critic(x).squeeze(1)
    actions = policy.sample()
    returns = actions.float()
    loss = -(policy.log_prob(actions) * (returns - values.detach())).mean() + (returns - values).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_run_reports_faulty_scripts(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script)
