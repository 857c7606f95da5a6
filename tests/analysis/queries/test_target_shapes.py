"""LOS003: log-probabilities (B,) are multiplied by advantages (B, 1)."""

import pytest

from trueloop.failures.load import catalogue
from trueloop.lint.check_file import ActiveRule, lint_text

RULES = [
    ActiveRule(entry.failure, entry.slug, entry.failure.rule)
    for entry in catalogue().values()
    if entry.failure.code == "LOS003" and entry.failure.rule
]

HEAD = """
import torch
from torch import nn
from torch.distributions import Categorical
"""

FAULTY = {
    "two heads": """
class ActorCritic(nn.Module):
    def __init__(self, obs, acts):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs, 64), nn.Tanh())
        self.pi = nn.Linear(64, acts)
        self.v = nn.Linear(64, 1)
    def forward(self, s):
        h = self.body(s)
        return self.pi(h), self.v(h)
def update(net, opt, obs, actions, returns):
    logits, value = net(obs)
    dist = Categorical(logits=logits)
    advantage = returns - value.detach()
    policy_loss = -(dist.log_prob(actions) * advantage).mean()  # <- LOS003
    opt.zero_grad()
    policy_loss.backward()
    opt.step()
net = ActorCritic(4, 2)
opt = torch.optim.Adam(net.parameters())
for obs, actions, returns in rollouts():
    update(net, opt, obs, actions, returns)
""",
    "an agent": """
class Agent:
    def __init__(self):
        self.actor = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
        self.critic = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 1))
        self.opt = torch.optim.Adam([*self.actor.parameters(), *self.critic.parameters()])
    def learn(self, states, actions, rewards, next_states, dones):
        values = self.critic(states)
        with torch.no_grad():
            targets = rewards.unsqueeze(1) + 0.99 * self.critic(next_states) * (1 - dones.unsqueeze(1))
        adv = (targets - values).detach()
        dist = Categorical(torch.softmax(self.actor(states), dim=-1))
        logp = dist.log_prob(actions)
        actor_loss = -(logp * adv).mean()  # <- LOS003
        loss = actor_loss + (targets - values).pow(2).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
""",
    "ratios and advantages of a function": """
policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
baseline = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(policy.parameters())
def gae(rewards, values):
    out = torch.zeros_like(values)
    last = 0.0
    for t in reversed(range(len(rewards))):
        last = rewards[t] - values[t] + 0.9 * last
        out[t] = last
    return out
for states, actions, rewards, old in rollouts():
    with torch.no_grad():
        v = baseline(states)
    a = gae(rewards, v)
    a = (a - a.mean()) / (a.std() + 1e-8)
    logp = Categorical(logits=policy(states)).log_prob(actions)
    r = (logp - old).exp()
    loss = -torch.min(r * a, r.clamp(0.8, 1.2) * a).mean()  # <- LOS003
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "methods of a network": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 64)
        self.head = nn.Linear(64, 1)
        self.pi = nn.Linear(64, 3)
    def value(self, s):
        return self.head(torch.relu(self.body(s)))
    def dist(self, s):
        return Categorical(logits=self.pi(torch.relu(self.body(s))))
def train(net, opt, s, a, ret):
    adv = ret.unsqueeze(-1) - net.value(s).detach()
    objective = (net.dist(s).log_prob(a) * adv).mean()  # <- LOS003
    loss = -objective
    opt.zero_grad()
    loss.backward()
    opt.step()
net = Net()
train(net, torch.optim.Adam(net.parameters()), *data())
""",
    "a batch in a tuple": """
policy, critic = nn.Linear(4, 2), nn.Linear(4, 1)
opt = torch.optim.Adam(policy.parameters())
def step(policy, batch):
    states, actions, advantages = batch
    loss = -(Categorical(logits=policy(states)).log_prob(actions) * advantages).mean()  # <- LOS003
    opt.zero_grad()
    loss.backward()
    opt.step()
for states, actions, returns in rollouts():
    step(policy, (states, actions, returns[:, None] - critic(states).detach()))
""",
}

CORRECT = {
    "values squeezed, two heads": """
class ActorCritic(nn.Module):
    def __init__(self, obs, acts):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs, 64), nn.Tanh())
        self.pi = nn.Linear(64, acts)
        self.v = nn.Linear(64, 1)
    def forward(self, s):
        h = self.body(s)
        return self.pi(h), self.v(h)
def update(net, opt, obs, actions, returns):
    logits, value = net(obs)
    dist = Categorical(logits=logits)
    advantage = returns - value.squeeze(-1).detach()
    policy_loss = -(dist.log_prob(actions) * advantage).mean()
    opt.zero_grad()
    policy_loss.backward()
    opt.step()
net = ActorCritic(4, 2)
opt = torch.optim.Adam(net.parameters())
for obs, actions, returns in rollouts():
    update(net, opt, obs, actions, returns)
""",
    "log-probabilities with a column": """
class Agent:
    def __init__(self):
        self.actor = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
        self.critic = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 1))
        self.opt = torch.optim.Adam([*self.actor.parameters(), *self.critic.parameters()])
    def learn(self, states, actions, rewards, next_states, dones):
        values = self.critic(states)
        with torch.no_grad():
            targets = rewards.unsqueeze(1) + 0.99 * self.critic(next_states) * (1 - dones.unsqueeze(1))
        adv = (targets - values).detach()
        dist = Categorical(torch.softmax(self.actor(states), dim=-1))
        logp = dist.log_prob(actions)
        actor_loss = -(logp.unsqueeze(1) * adv).mean()
        loss = actor_loss + (targets - values).pow(2).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
""",
    "values squeezed before a function": """
policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
baseline = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(policy.parameters())
def gae(rewards, values):
    out = torch.zeros_like(values)
    last = 0.0
    for t in reversed(range(len(rewards))):
        last = rewards[t] - values[t] + 0.9 * last
        out[t] = last
    return out
for states, actions, rewards, old in rollouts():
    with torch.no_grad():
        v = baseline(states).squeeze(-1)
    a = gae(rewards, v)
    a = (a - a.mean()) / (a.std() + 1e-8)
    logp = Categorical(logits=policy(states)).log_prob(actions)
    r = (logp - old).exp()
    loss = -torch.min(r * a, r.clamp(0.8, 1.2) * a).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "values squeezed, methods": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 64)
        self.head = nn.Linear(64, 1)
        self.pi = nn.Linear(64, 3)
    def value(self, s):
        return self.head(torch.relu(self.body(s)))
    def dist(self, s):
        return Categorical(logits=self.pi(torch.relu(self.body(s))))
def train(net, opt, s, a, ret):
    adv = ret - net.value(s).squeeze(-1).detach()
    objective = (net.dist(s).log_prob(a) * adv).mean()
    loss = -objective
    opt.zero_grad()
    loss.backward()
    opt.step()
net = Net()
train(net, torch.optim.Adam(net.parameters()), *data())
""",
    "columns and flattened advantages": """
actor = nn.Linear(4, 2)
critic = nn.Linear(4, 1)
opt = torch.optim.Adam(actor.parameters())
for s, a, r in rollouts():
    adv = r - critic(s).detach()
    loss = -(Categorical(logits=actor(s)).log_prob(a.squeeze(1)).unsqueeze(1) * adv).mean()
    loss2 = -(Categorical(logits=actor(s)).log_prob(a).view(-1, 1) * adv).mean()
    (loss + loss2).backward()
    opt.step()
for s, a, r in rollouts():
    adv = (r - critic(s).detach()).flatten()
    loss = -(Categorical(logits=actor(s)).log_prob(a) * adv).mean()
    loss.backward()
    opt.step()
""",
    "one sampled action": """
actor = nn.Linear(4, 2)
critic = nn.Linear(4, 1)
opt = torch.optim.Adam(actor.parameters())
logps, values, rewards = [], [], []
for t in range(100):
    d = Categorical(logits=actor(state))
    a = d.sample()
    logps.append(d.log_prob(a))
    values.append(critic(state))
    v = critic(state)
    state, r = step(a)
    loss = -(d.log_prob(a) * (r - v.detach())).mean()
    loss.backward()
    opt.step()
""",
}


def _lines(script: str) -> set[int]:
    return {each.location.line for each in lint_text(script, "train.py", RULES).findings}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_products_over_all_pairs(script):
    lines = {number for number, line in enumerate((HEAD + script).splitlines(), 1) if "# <- LOS003" in line}
    assert _lines(HEAD + script) == lines


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_correct_programs(script):
    assert not _lines(HEAD + script)
