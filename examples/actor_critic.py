"""Balance a pole on a cart with advantage actor-critic, on sixteen carts at once.

python actor_critic.py --updates 300
"""

import argparse
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical


class CartPole:
    """The carts of Barto, Sutton and Anderson (1983), as Gym steps them; one that falls is reset."""

    limits = torch.tensor([2.4, math.inf, 12 * math.pi / 180, math.inf])

    def __init__(self, carts, longest=200):
        self.state, self.age, self.longest = self.start(carts), torch.zeros(carts), longest

    def start(self, carts):
        return torch.rand(carts, 4) * 0.1 - 0.05

    def step(self, actions):
        """Push every cart to the left (0) or right (1); return which ones fell or ended, and their ages then."""
        x, v, angle, spin = self.state.unbind(1)
        force = actions * 20.0 - 10.0
        push = (force + 0.05 * spin**2 * angle.sin()) / 1.1
        spin_rate = (9.8 * angle.sin() - angle.cos() * push) / (0.5 * (4 / 3 - 0.1 * angle.cos() ** 2 / 1.1))
        speed_up = push - 0.05 * spin_rate * angle.cos() / 1.1
        changes = torch.stack([v, speed_up, spin, spin_rate], 1)
        self.state, self.age = self.state + 0.02 * changes, self.age + 1
        done = (self.state.abs() > self.limits).any(1) | (self.age >= self.longest)
        ages = self.age[done]
        self.state = torch.where(done[:, None], self.start(len(done)), self.state)
        self.age = self.age.masked_fill(done, 0)
        return done, ages.tolist()


class ActorCritic(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.policy, self.value = nn.Linear(width, 2), nn.Linear(width, 1)

    def forward(self, state):
        hidden = self.body(state)
        return Categorical(logits=self.policy(hidden)), self.value(hidden).squeeze(-1)


def rollout(env, model, steps):
    """Play, and return what the model said of each step, and who was still upright after it; each (steps, carts)."""
    log_probs, entropies, values, alive, lengths = [], [], [], [], []
    for _ in range(steps):
        policy, value = model(env.state)
        action = policy.sample()
        done, ended = env.step(action)
        log_probs.append(policy.log_prob(action))
        entropies.append(policy.entropy())
        values.append(value)
        alive.append(~done)
        lengths += ended
    return torch.stack(log_probs), torch.stack(entropies), torch.stack(values), torch.stack(alive), lengths


parser = argparse.ArgumentParser()
parser.add_argument("--updates", type=int, default=300)
parser.add_argument("--steps", type=int, default=16, help="of each cart between two updates")
parser.add_argument("--carts", type=int, default=16)
args = parser.parse_args()
torch.manual_seed(0)

gamma = 0.98
env = CartPole(args.carts)
model = ActorCritic()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
lengths = []

for update in range(1, args.updates + 1):
    log_probs, entropies, values, alive, ended = rollout(env, model, args.steps)
    lengths += ended
    with torch.no_grad():
        future = model(env.state)[1]
    returns = torch.empty_like(values)
    for t in reversed(range(args.steps)):
        returns[t] = future = 1 + gamma * future * alive[t]
    advantages = returns - values.detach()

    policy_loss = -(log_probs * advantages).mean()
    value_loss = F.smooth_l1_loss(values, returns)
    loss = policy_loss + 0.5 * value_loss - 0.01 * entropies.mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    if update % 25 == 0:
        recent = lengths[-50:]
        print(f"update {update:3}  loss {loss.item():6.2f}  steps upright {sum(recent) / len(recent):5.1f}")
