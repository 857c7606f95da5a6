"""LOS077: the best action is trained instead of the action taken."""

import pytest

FAULTY = {
    "a replay memory": """
import torch
import torch.nn.functional as F

def optimize_model():
    batch = Transition(*zip(*random.sample(memory, 64)))
    state, next_state = torch.stack(batch.state), torch.stack(batch.next_state)
    action, reward = torch.tensor(batch.action), torch.tensor(batch.reward)
    state_action_values = policy_net(state).max(1)[0]  # <- LOS077
    with torch.no_grad():
        next_values = target_net(next_state).max(1)[0]
    expected = reward + GAMMA * next_values
    loss = F.smooth_l1_loss(state_action_values, expected)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "unpacked": """
import torch
import torch.nn as nn
criterion = nn.MSELoss()

def learn(q_net, target_net, optimizer, gamma=0.99):
    states, actions, rewards, next_states, dones = memory.sample()
    best, _ = q_net(states).max(dim=1)  # <- LOS077
    targets = rewards + gamma * target_net(next_states).detach().max(dim=1).values * (1 - dones)
    loss = criterion(best, targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "a difference in a class": """
import torch

class Agent:
    def update(self):
        s, a, r, s2, d = self.memory.sample(self.batch_size)
        values = torch.max(self.q(s), dim=-1).values.unsqueeze(1)  # <- LOS077
        with torch.no_grad():
            target = r + (1 - d) * self.discount * self.target(s2).amax(1, keepdim=True)
        loss = (target - values).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
""",
    "target first": """
import torch

def step(replay, gamma):
    s, a, r, s2, d = replay.sample(64)
    y = (r + gamma * (1 - d) * target(s2).max(1).values).detach()
    loss = torch.nn.functional.mse_loss(y, q(s).amax(1))  # <- LOS077
    loss.backward()
""",
}
CORRECT = {
    "the action taken": """
import torch

def step(replay, gamma):
    s, a, r, s2, d = replay.sample(64)
    y = (r + gamma * target(s2).max(1).values).detach()
    loss = torch.nn.functional.mse_loss(q(s).gather(1, a).squeeze(1), y)
    loss.backward()
""",
    "the action is known to be the best": """
import torch

def step(state, gamma):
    values = q(state)
    action = values.argmax(1)
    following, reward = env.step(action)
    y = (reward + gamma * q(following).max(1).values).detach()
    loss = torch.nn.functional.mse_loss(values.max(1).values, y)
    loss.backward()
""",
    "double Q-learning": """
import torch

def step(replay, gamma):
    s, a, r, s2, d = replay.sample(64)
    with torch.no_grad():
        best = q(s2).max(1)[0]
        y = r + gamma * best * (1 - d)
    value = q(s).gather(1, a).squeeze(1)
    loss = (value - y).pow(2).mean() + 0.1 * (q(s).max(1)[0] - value).mean()
    loss.backward()
""",
    "a critic of states": """
import torch

def step(replay, gamma):
    s, r, s2, d = replay.sample(64)
    y = (r + gamma * critic(s2)).detach()
    loss = torch.nn.functional.mse_loss(critic(s), y)
    loss.backward()
""",
    "several sampled actions": """
import torch

def step(replay, gamma):
    s, a, r, s2, d = replay.sample(64)
    actions = policy.sample(s, 10)
    y = (r + gamma * target(s2)).detach()
    loss = torch.nn.functional.mse_loss(critic(s, actions).max(1).values, y)
    loss.backward()
""",
    "only printed": """
import torch

def step(replay, gamma):
    s, a, r, s2, d = replay.sample(64)
    y = (r + gamma * target(s2).max(1).values).detach()
    loss = torch.nn.functional.mse_loss(q(s).gather(1, a).squeeze(1), y)
    with torch.no_grad():
        print((q(s).max(1).values - y).mean())
    loss.backward()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_best_action(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_the_action_taken(lint_codes, script):
    assert "LOS077" not in lint_codes(script)
