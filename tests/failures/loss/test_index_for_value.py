"""LOS070: TD targets that contain the index of the best action."""

import pytest

FAULTY = {
    "unpacked": """
import torch
import torch.nn.functional as F

def learn(batch, q_net, target_net, optimizer, gamma=0.99):
    states, actions, rewards, next_states, dones = batch
    with torch.no_grad():
        _, best = torch.max(target_net(next_states), dim=1)  # <- LOS070
        targets = rewards + gamma * best * (1 - dones)
    q = q_net(states).gather(1, actions.unsqueeze(1)).squeeze(1)
    loss = F.mse_loss(q, targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "argmax in a class": """
import torch

class Agent:
    def update(self):
        s, a, r, s2, d = self.memory.sample(self.batch_size)
        following = self.target(s2).detach().argmax(dim=1).float()  # <- LOS070
        target = r + (1 - d) * self.discount * following
        q = self.q(s)[torch.arange(len(a)), a]
        loss = (q - target).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
""",
    "rows of those that go on": """
import torch

def optimize_model():
    batch = Transition(*zip(*memory.sample(BATCH_SIZE)))
    reward_batch = torch.cat(batch.reward)
    q = policy_net(torch.cat(batch.state)).gather(1, torch.cat(batch.action))
    next_state_values = torch.zeros(BATCH_SIZE)
    next_state_values[mask] = target_net(non_final_next_states).max(1)[1].float()  # <- LOS070
    expected = (next_state_values * GAMMA) + reward_batch
    loss = criterion(q, expected.unsqueeze(1))
    loss.backward()
""",
    "in a function": """
import torch

def best_value(net, s2):
    return net(s2).max(dim=-1).indices  # <- LOS070

def step(replay):
    s, a, r, s2, d = replay.sample(64)
    y = r + 0.98 * best_value(target, s2) * (1 - d)
    loss = torch.nn.functional.smooth_l1_loss(q(s).gather(1, a).squeeze(1), y)
    loss.backward()
""",
    "one transition": """
import torch

for step in range(1000):
    value = net(state)[action]
    goal = reward + gamma * torch.argmax(net(next_state))  # <- LOS070
    loss = (value - goal.detach()) ** 2
    loss.backward()
""",
}

CORRECT = {
    "values": """
import torch

def learn(s, a, r, s2, d):
    best, index = target(s2).max(1)
    y = r + gamma * best * (1 - d)
    loss = (q(s).gather(1, a).squeeze(1) - y).pow(2).mean()
    loss.backward()
    return index
""",
    "first of two": """
import torch

def learn(s, a, r, s2, d):
    y = r + gamma * target(s2).max(1)[0].detach() * (1 - d)
    loss = (q(s).gather(1, a).squeeze(1) - y).pow(2).mean()
    loss.backward()
""",
    "double": """
import torch

def learn(s, a, r, s2, d):
    chosen = q(s2).argmax(1, keepdim=True)
    y = r + gamma * target(s2).gather(1, chosen).squeeze(1) * (1 - d)
    loss = (q(s).gather(1, a).squeeze(1) - y).pow(2).mean()
    loss.backward()
""",
    "indexed": """
import torch

def learn(s, a, r, s2, d):
    rows = torch.arange(len(r))
    y = r + gamma * target(s2)[rows, q(s2).max(1)[1]] * (1 - d)
    loss = (q(s)[rows, a] - y).pow(2).mean()
    loss.backward()
""",
    "row of a table": """
import torch

def learn(s, a, r, s2, values):
    y = r + 0.9 * values.max()[1]
    z = r + 0.9 * values[1]
    loss = (net(s) - y - z).pow(2).mean()
    loss.backward()
""",
    "a name used twice": """
import torch

def learn(s, a, r, s2, d):
    best = target(s2).argmax(1)
    best = target(s2).gather(1, best[:, None]).squeeze(1)
    y = r + gamma * best * (1 - d)
    loss = (q(s).gather(1, a).squeeze(1) - y).pow(2).mean()
    loss.backward()
""",
    "a mask of the best": """
import torch

def learn(s, a, r, s2, d):
    greedy = torch.nn.functional.one_hot(q(s2).argmax(1), 4)
    y = r + gamma * (target(s2) * greedy).sum(1) * (1 - d)
    loss = (q(s).gather(1, a).squeeze(1) - y).pow(2).mean()
    loss.backward()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_indices_as_values(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_values(lint_is_clean, script):
    lint_is_clean(script, "LOS070")
