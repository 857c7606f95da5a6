"""LOS065: log-probabilities of single dimensions of an action."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.distributions import Independent, Normal

"""
FAULTY = {
    "a ratio of PPO, with a class": """
class Actor(nn.Module):
    def __init__(self, obs_dim, act_dim):
        super().__init__()
        self.mu = nn.Sequential(nn.Linear(obs_dim, 64), nn.Tanh(), nn.Linear(64, act_dim))
        self.log_std = nn.Parameter(torch.zeros(act_dim))

    def dist(self, obs):
        return Normal(self.mu(obs), self.log_std.exp())

actor = Actor(4, 3)
optimizer = torch.optim.Adam(actor.parameters())

def update(obs, act, logp_old, adv):
    logp = actor.dist(obs).log_prob(act)  # <- LOS065
    ratio = torch.exp(logp - logp_old)
    loss = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "an averaged log-probability": """
net = nn.Linear(4, 2)
optimizer = torch.optim.Adam(net.parameters())

def update(obs, act, old, adv):
    d = Normal(net(obs), 0.5)
    new = d.log_prob(act).mean(-1)  # <- LOS065
    rho = (new - old).exp()
    loss = -(rho * adv).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "a sum in another place": """
class Agent(nn.Module):
    def __init__(self, envs):
        super().__init__()
        self.mean = nn.Linear(8, envs.action_space.shape[0])
        self.log_std = nn.Parameter(torch.zeros(1, envs.action_space.shape[0]))

    def act(self, x):
        d = Normal(self.mean(x), self.log_std.exp())
        a = d.sample()
        return a, d.log_prob(a).sum(-1)

    def evaluate(self, x, a):
        d = Normal(self.mean(x), self.log_std.exp())
        return d.log_prob(a), d.entropy().sum(-1)  # <- LOS065

def update(agent, optimizer, x, a, old, advantages):
    new, entropy = agent.evaluate(x, a)
    ratio = torch.exp(new - old)
    loss = -(ratio * advantages).mean() - 0.01 * entropy.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "advantages with one column": """
policy = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 4), nn.Tanh())
optimizer = torch.optim.Adam(policy.parameters())

def learn(states, actions, advantages):
    dist = Normal(policy(states), 0.3)
    log_probs = dist.log_prob(actions)  # <- LOS065
    loss = -(log_probs * advantages.unsqueeze(-1)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "the entropy term of SAC": """
body = nn.Linear(5, 6)
critic = nn.Linear(8, 1)
optimizer = torch.optim.Adam(body.parameters())
alpha = 0.2

def step(states):
    mu, log_std = body(states).chunk(2, dim=-1)
    normal = Normal(mu, log_std.exp())
    action = normal.rsample()
    logp = normal.log_prob(action)  # <- LOS065
    q = critic(torch.cat([states, action], 1))
    loss = (alpha * logp - q).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
}
PPO = """
def update(obs, act, old, adv):
    new = {new}
    ratio = (new - old).exp()
    loss = -(ratio * adv).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
CORRECT = {
    "summed": "net = nn.Linear(4, 2)\noptimizer = torch.optim.Adam(net.parameters())\n"
    + PPO.format(new="Normal(net(obs), 0.5).log_prob(act).sum(-1)"),
    "summed later": "net = nn.Linear(4, 2)\noptimizer = torch.optim.Adam(net.parameters())\n"
    + PPO.format(new="Normal(net(obs), 0.5).log_prob(act)\n    new = new.sum(dim=1)"),
    "independent": "net = nn.Linear(4, 2)\noptimizer = torch.optim.Adam(net.parameters())\n"
    + PPO.format(new="Independent(Normal(net(obs), 0.5), 1).log_prob(act)"),
    "one dimension": "net = nn.Linear(4, 1)\noptimizer = torch.optim.Adam(net.parameters())\n"
    + PPO.format(new="Normal(net(obs), 0.5).log_prob(act)"),
    "without the dimension": "net = nn.Linear(4, 1)\noptimizer = torch.optim.Adam(net.parameters())\n"
    + PPO.format(new="Normal(net(obs).squeeze(-1), 0.5).log_prob(act)"),
    "unknown dimensions": "def build(env):\n    return nn.Linear(4, env.action_space.shape[0])\n\nnet = build(None)\n"
    "optimizer = torch.optim.Adam(net.parameters())\n" + PPO.format(new="Normal(net(obs), 0.5).log_prob(act)"),
    "everything is summed": """
policy = nn.Linear(6, 4)
optimizer = torch.optim.Adam(policy.parameters())

def learn(states, actions, advantages):
    log_probs = Normal(policy(states), 0.3).log_prob(actions)
    loss = -(log_probs * advantages.unsqueeze(-1)).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "a likelihood": """
model = nn.Linear(6, 4)
optimizer = torch.optim.Adam(model.parameters())

def learn(x, y):
    loss = -Normal(model(x), 0.3).log_prob(y).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(HEAD + script)
