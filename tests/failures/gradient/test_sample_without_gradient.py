"""GRD019: samples that pass no gradient."""

import pytest

FAULTY = {
    "of a method": """
class VAE(nn.Module):
    def posterior(self, x):
        h = self.body(x)
        return Normal(self.mu(h), self.std(h).exp())
    def forward(self, x):
        q = self.posterior(x)
        z = q.sample()  # <- GRD019
        return self.decoder(z), q
""",
    "in forward": """
class VAE(nn.Module):
    def forward(self, x):
        mu = self.mu(x)
        q = Normal(mu, torch.exp(self.log_std(x)))
        z = q.sample()  # <- GRD019
        return self.decoder(z)
""",
    "passed at once": """
class VAE(nn.Module):
    def forward(self, x):
        mu, std = self.encode(x)
        return self.decode(torch.distributions.Normal(mu, std).sample())  # <- GRD019
""",
}

CORRECT = {
    "a policy": """
class Policy(nn.Module):
    def forward(self, x):
        dist = Normal(self.mu(x), self.std(x))
        action = dist.sample()
        return self.critic(action), dist.log_prob(action)
""",
    "a fixed distribution": """
class GAN(nn.Module):
    def forward(self, n):
        z = Normal(torch.zeros(8), torch.ones(8)).sample((n,))
        return self.generator(z)
""",
    "without gradients": """
class VAE(nn.Module):
    @torch.no_grad()
    def generate(self, x):
        z = Normal(self.mu(x), self.std(x)).sample()
        return self.decoder(z)
""",
    "no reparametrisation exists": """
class Discrete(nn.Module):
    def forward(self, x):
        z = Categorical(logits=self.encoder(x)).sample()
        return self.embedding(z)
""",
    "the sample is the output": """
class Head(nn.Module):
    def forward(self, x):
        return Normal(self.mu(x), self.std(x)).sample()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(script)


POLICY = """
import torch
from torch import nn
from torch.distributions import Categorical, Independent, Normal
import torch.nn.functional as F

class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.mean, self.spread = nn.Linear(4, 32), nn.Linear(32, 2), nn.Linear(32, 2)
    def forward(self, s):
        h = torch.relu(self.body(s))
        return self.mean(h), self.spread(h).clamp(-5, 2)
"""

POLICY_FAULTY = {
    "a method of the actor": """
    def act(self, s):
        mu, log_std = self(s)
        dist = Normal(mu, log_std.exp())
        u = dist.sample()  # <- GRD019
        a = torch.tanh(u)
        return a, dist.log_prob(u).sum(1) - torch.log(1 - a ** 2 + 1e-6).sum(1)
actor, critic = Actor(), Critic()
for s, a, r, s2 in memory:
    with torch.no_grad():
        a2, logp2 = actor.act(s2)
        y = r + 0.99 * (target(s2, a2) - 0.2 * logp2)
    critic_loss = F.mse_loss(critic(s, a), y)
    critic_loss.backward()
    new, logp = actor.act(s)
    loss = (0.2 * logp - torch.min(*critic(s, new))).mean()
    loss.backward()
""",
    "a class with an update": """
class Agent:
    def __init__(self):
        self.policy, self.q1, self.q2 = Actor(), Critic(), Critic()
    def sample(self, state):
        mean, log_std = self.policy(state)
        normal = Normal(mean, log_std.exp())
        x = normal.sample()  # <- GRD019
        y = torch.tanh(x)
        log_prob = normal.log_prob(x) - torch.log(1 - y.pow(2) + 1e-6)
        return y, log_prob.sum(1, keepdim=True), torch.tanh(mean)
    def update(self, memory):
        state, action, reward, following = memory.sample(64)
        pi, log_pi, _ = self.sample(state)
        q = torch.min(self.q1(state, pi), self.q2(state, pi))
        policy_loss = ((self.alpha * log_pi) - q).mean()
        self.optimizer.zero_grad()
        policy_loss.backward()
        self.optimizer.step()
""",
    "inline": """
actor, q = Actor(), nn.Linear(6, 1)
for s in states:
    mu, log_std = actor(s)
    action = Normal(mu, log_std.exp()).sample().clamp(-1, 1)  # <- GRD019
    loss = -q(torch.cat([s, action], dim=-1)).mean()
    loss.backward()
""",
    "a method that returns the distribution": """
    def dist(self, s):
        mu, log_std = self(s)
        return Independent(Normal(mu, log_std.exp()), 1)
def actor_loss(actor, critic, obs, alpha):
    pi = actor.dist(obs)
    a = pi.sample()  # <- GRD019
    return alpha * pi.log_prob(a).mean() - critic(obs, a).mean()
for obs in loader:
    loss = actor_loss(actor, critic, obs, 0.1)
    loss.backward()
""",
    "a subscript": """
    def draw(self, s):
        mu, log_std = self(s)
        return torch.tanh(Normal(mu, log_std.exp()).sample()), mu  # <- GRD019
def step(actor, critic, s):
    value = critic(s, actor.draw(s)[0])
    (-value.mean()).backward()
""",
}

POLICY_CORRECT = {
    "rsample": POLICY_FAULTY["a method of the actor"].replace(".sample()", ".rsample()").replace("  # <- GRD019", ""),
    "REINFORCE": """
actor = Actor()
for s in states:
    mu, log_std = actor(s)
    dist = Normal(mu, log_std.exp())
    a = dist.sample()
    reward = env.step(a)
    loss = -(dist.log_prob(a).sum(1) * reward).mean()
    loss.backward()
""",
    "a critic as baseline": """
actor, critic, q = Actor(), nn.Linear(4, 1), nn.Linear(6, 1)
for s in states:
    mu, log_std = actor(s)
    dist = Normal(mu, log_std.exp())
    a = dist.sample()
    log_prob = dist.log_prob(a).sum(1)
    advantage = q(torch.cat([s, a], 1)).squeeze(1).detach() - critic(s).squeeze(1)
    loss = -(log_prob * advantage.detach()).mean() + advantage.pow(2).mean() - 0.01 * dist.entropy().mean()
    loss.backward()
""",
    "PPO": """
def act(actor, s):
    mu, log_std = actor(s)
    dist = Normal(mu, log_std.exp())
    a = dist.sample()
    return a, dist.log_prob(a).sum(1)
for s, a, old, adv, ret in batches:
    _, logp = act(actor, s)
    ratio = (logp - old).exp()
    loss = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean() + F.mse_loss(value(s), ret)
    loss.backward()
""",
    "a rollout": """
for t in range(100):
    with torch.no_grad():
        mu, log_std = actor(s)
        a = Normal(mu, log_std.exp()).sample()
    s, r = env.step(a)
    loss = -critic(s, actor(s)[0]).mean()
    loss.backward()
""",
    "the target of the critic": """
for s, a, r, s2 in memory:
    mu, log_std = actor(s2)
    a2 = Normal(mu, log_std.exp()).sample()
    y = r + 0.99 * target(s2, a2).detach()
    loss = F.mse_loss(critic(s, a), y)
    loss.backward()
""",
    "a conservative critic": """
for s, a, r in memory:
    mu, log_std = actor(s)
    drawn = Normal(mu, log_std.exp()).sample()
    loss = critic(s, drawn).mean() - critic(s, a).mean()
    loss.backward()
""",
    "noise": """
for s in states:
    mu, log_std = actor(s)
    noise = Normal(torch.zeros_like(mu), torch.ones_like(mu)).sample()
    a = torch.tanh(mu + log_std.exp() * noise)
    loss = -critic(s, a).mean()
    loss.backward()
""",
    "discrete actions": """
for s in states:
    dist = Categorical(logits=actor(s)[0])
    a = dist.sample()
    loss = -(dist.log_prob(a) * critic(s, a).detach()).mean()
    loss.backward()
""",
    "straight through": """
for s in states:
    mu, log_std = actor(s)
    a = Normal(mu, log_std.exp()).sample()
    a = a + mu - mu.detach()
    loss = -critic(s, a).mean()
    loss.backward()
""",
}


@pytest.mark.parametrize("script", POLICY_FAULTY.values(), ids=POLICY_FAULTY)
def test_lint_reports_samples_of_a_policy_that_a_critic_judges(lint_reports, script):
    lint_reports(POLICY + script)


@pytest.mark.parametrize("script", POLICY_CORRECT.values(), ids=POLICY_CORRECT)
def test_lint_accepts_samples_that_need_no_gradient(lint_is_clean, script):
    lint_is_clean(POLICY + script, "GRD019")
