"""LOS055: targets of two critics that contain the larger value."""

import pytest

START = """
import torch
import torch.nn.functional as F

def update(batch, agent, optimizer, gamma=0.99, alpha=0.2):
    s, a, r, s2, d = batch
    with torch.no_grad():
        a2, logp = agent.actor.sample(s2)
        q1, q2 = agent.target1(s2, a2), agent.target2(s2, a2)
        TARGET
    loss = F.mse_loss(agent.critic1(s, a), y) + F.mse_loss(agent.critic2(s, a), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def _update(*lines):
    return START.replace("TARGET", "\n        ".join(lines))


FAULTY = {
    "in one line": _update("y = r + gamma * (1 - d) * torch.max(q1, q2)  # <- LOS055"),
    "with an entropy": _update(
        "value = torch.maximum(q1, q2) - alpha * logp  # <- LOS055", "y = r + (1 - d) * gamma * value"
    ),
    "a method": _update("q = q1.max(q2)  # <- LOS055", "y = r + gamma * (1 - d) * q.squeeze(-1)"),
    "fmax": _update("y = r + gamma * (1 - d) * (torch.fmax(q1, q2) - alpha * logp)  # <- LOS055"),
    "stacked": _update("q = torch.stack([q1, q2]).max(0)[0]  # <- LOS055", "y = r + gamma * (1 - d) * q"),
    "joined": _update(
        "both = torch.cat((q1, q2), dim=1)",
        "q, _ = both, None",
        "y = r + gamma * (1 - d) * both.max(dim=1, keepdim=True).values  # <- LOS055",
    ),
    "unpacked": _update(
        "q, _ = torch.max(torch.cat([q1, q2], 1), dim=1, keepdim=True)  # <- LOS055",
        "y = r + gamma * (1 - d) * q",
    ),
    "a discount from a dictionary": _update(
        "q = torch.max(q1, q2)  # <- LOS055", 'y = r + (1 - d) * agent.settings["discount_rate"] * torch.flatten(q)'
    ),
    "less": _update("y = r + gamma * (1 - d) * torch.where(q1 < q2, q2, q1)  # <- LOS055"),
    "where": _update("y = r + gamma * (1 - d) * torch.where(q1 > q2, q1, q2)  # <- LOS055"),
    "a critic with two heads": """
import torch

class TD3:
    def train(self):
        state, action, next_state, reward, not_done = self.buffer.sample(256)
        with torch.no_grad():
            next_action = self.actor_target(next_state).clamp(-1, 1)
            target_Q1, target_Q2 = self.critic_target(next_state, next_action)
            target_Q = torch.max(target_Q1, target_Q2)  # <- LOS055
            target_Q = reward + not_done * self.discount * target_Q
        current_Q1, current_Q2 = self.critic(state, action)
        critic_loss = (current_Q1 - target_Q).pow(2).mean() + (current_Q2 - target_Q).pow(2).mean()
        critic_loss.backward()
""",
    "weighted by the probabilities of actions": _update(
        "value = probs * (torch.max(q1, q2) - alpha * logp)  # <- LOS055",
        "value = value.sum(dim=1)",
        "y = r + gamma * (1 - d) * value",
    ),
    "an unpacked critic": """
import torch

def target(batch, critic, actor, gamma):
    best = torch.max(*critic(batch.next_obs, actor(batch.next_obs)))  # <- LOS055
    return batch.rewards + gamma * best * (1 - batch.dones)

loss = (net(batch.obs) - target(batch, critic, actor, 0.99)).pow(2).mean()
loss.backward()
""",
    "a function for the value": """
import torch

def next_value(s2, a2):
    return torch.max(nets[0](s2, a2), nets[1](s2, a2))  # <- LOS055

for s, a, rew, s2, done in loader:
    backup = rew + gamma * (1 - done) * next_value(s2, actor(s2))
    loss = ((critic(s, a) - backup) ** 2).mean()
    loss.backward()
""",
}
CORRECT = {
    "the smaller one": _update("y = r + gamma * (1 - d) * (torch.min(q1, q2) - alpha * logp)"),
    "a mixture": _update("q = 0.75 * torch.min(q1, q2) + 0.25 * torch.max(q1, q2)", "y = r + gamma * (1 - d) * q"),
    "only printed": _update(
        "y = r + gamma * (1 - d) * torch.min(q1, q2)", 'print("larger", torch.max(q1, q2).mean().item())'
    ),
    "over actions": _update("y = r + gamma * (1 - d) * agent.target1(s2, a2).max(1).values"),
    "a lower limit": _update("y = r + gamma * (1 - d) * torch.max(q1, torch.zeros_like(q1))"),
    "the smaller one by where": _update("y = r + gamma * (1 - d) * torch.where(q1 < q2, q1, q2)"),
    "a limit by name": _update("y = r + gamma * (1 - d) * torch.max(q1, lower_limit)"),
    "a cost": _update("cost = r", "y = cost + gamma * (1 - d) * torch.max(q1, q2)"),
    "exploration": """
import torch

def act(state):
    actions = actor.sample(state, 10)
    upper = torch.max(critic1(state, actions), critic2(state, actions))
    return actions[upper.argmax()]

y = r + gamma * (1 - d) * torch.min(target1(s2, a2), target2(s2, a2))
loss = (critic1(s, a) - y).pow(2).mean()
loss.backward()
""",
    "the loss of the actor": """
import torch
reward_scale = 1.0
a = actor(s)
actor_loss = (alpha * logp - torch.min(critic1(s, a), critic2(s, a))).mean()
loss = actor_loss + 0.9 * torch.max(torch.zeros(1), penalty)
loss.backward()
""",
    "an ensemble": _update(
        "q = torch.stack([c(s2, a2) for c in agent.targets[:2]]).min(0).values",
        "y = r + gamma * (1 - d) * q",
    ),
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_larger_value(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_smaller_values_and_other_maxima(lint_is_clean, script):
    lint_is_clean(script, "LOS055")
