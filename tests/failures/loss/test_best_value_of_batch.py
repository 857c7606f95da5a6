"""LOS054: TD targets that contain the largest value of the whole batch."""

import pytest

FAULTY = {
    "a function": """
import torch
import torch.nn.functional as F

def learn(batch, q_net, target_net, optimizer, gamma=0.99):
    states, actions, rewards, next_states, dones = batch
    with torch.no_grad():
        next_q = target_net(next_states)
        best = torch.max(next_q)  # <- LOS054
        targets = rewards + gamma * best * (1 - dones)
    q = q_net(states).gather(1, actions.unsqueeze(1)).squeeze(1)
    loss = F.mse_loss(q, targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "a class": """
import torch

class Agent:
    def update(self):
        s, a, r, s2, d = self.memory.sample(self.batch_size)
        target = r + (1 - d) * self.discount * self.target(s2).detach().max()  # <- LOS054
        q = self.q(s)[torch.arange(len(a)), a]
        loss = (q - target).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
""",
    "rewards from a memory": """
import torch

for step in range(1000):
    s, a, r, s2, d = zip(*random.sample(memory, 32))
    r, d = torch.tensor(r), torch.tensor(d)
    v = target(torch.stack(s2)).amax().item()  # <- LOS054
    y = r + 0.99 * v * (1 - d)
    chosen = (net(torch.stack(s)) * one_hot(a)).sum(1)
    loss = ((chosen - y) ** 2).mean()
    loss.backward()
""",
    "rows of those that go on": """
import torch

def optimize_model():
    batch = Transition(*zip(*memory.sample(BATCH_SIZE)))
    reward_batch = torch.cat(batch.reward)
    q = policy_net(torch.cat(batch.state)).gather(1, torch.cat(batch.action))
    next_state_values = torch.zeros(BATCH_SIZE)
    next_state_values[mask] = target_net(non_final_next_states).max()  # <- LOS054
    expected = (next_state_values * GAMMA) + reward_batch
    loss = criterion(q, expected.unsqueeze(1))
    loss.backward()
""",
    "an array": """
import numpy as np
import torch

def learn(memory):
    s, a, r, s2, d = memory.sample(64)
    best = target(s2).detach().numpy()
    y = r + gamma * (1 - d) * torch.as_tensor(np.max(best))  # <- LOS054
    loss = (q(s).gather(1, a).squeeze(1) - y).pow(2).mean()
    loss.backward()
""",
    "a function for the best value": """
import torch

def best_value(states):
    return target(states).max()  # <- LOS054

for states, actions, rewards, next_states, dones in loader:
    y = rewards + gamma * best_value(next_states) * (1 - dones)
    loss = criterion(q(states).gather(dim=1, index=actions).squeeze(), y)
    loss.backward()
""",
    "added to a copy of the rewards": """
import torch

def step(replay):
    batch = replay.sample(64)
    y = batch.reward.clone()
    y[~batch.done] += gamma * torch.max(target(batch.next_state[~batch.done]))  # <- LOS054
    q = net(batch.state).gather(1, batch.action)
    loss = (q - y).square().mean()
    loss.backward()
""",
}
DQN = """
import torch

def learn(batch, q_net, target_net, optimizer, gamma=0.99):
    states, actions, rewards, next_states, dones = batch
    q = q_net(states).gather(1, actions).squeeze(1)
    best = BEST
    loss = (q - (rewards + gamma * best * (1 - dones))).pow(2).mean()
    loss.backward()
"""
FAULTY["enumerate"] = FAULTY["a function for the best value"].replace(
    "for states, actions, rewards, next_states, dones in loader",
    "for i, (states, actions, rewards, next_states, dones) in enumerate(loader)",
)
CORRECT = {
    "max(1)[0]": DQN.replace("BEST", "target_net(next_states).max(1)[0]"),
    "max(dim=1).values": DQN.replace("BEST", "target_net(next_states).max(dim=1).values"),
    "amax": DQN.replace("BEST", "target_net(next_states).amax(1)"),
    "torch.max": DQN.replace("BEST", "torch.max(target_net(next_states), 1)[0].detach()"),
    "double DQN": DQN.replace(
        "BEST", "target_net(next_states).gather(1, q_net(next_states).argmax(1, keepdim=True)).squeeze(1)"
    ),
    "two critics": DQN.replace("BEST", "torch.max(target_net(next_states), other(next_states)).mean(1)"),
    "only printed": DQN.replace("BEST", "target_net(next_states).max(1).values")
    + '    print("largest", gamma * target_net(next_states).max())\n',
    "online": """
import torch

state = torch.randn(4)
for step in range(1000):
    action = q(state).argmax().item()
    next_state, reward, done = env.step(action)
    with torch.no_grad():
        target = reward + 0.99 * q(next_state).max() * (1 - done)
    loss = (q(state)[action] - target) ** 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "online in a class": """
import torch

class Agent:
    def learn(self, state, action, reward, next_state, done):
        target = reward if done else reward + self.gamma * self.net(next_state).max().item()
        loss = (self.net(state)[action] - target) ** 2
        loss.backward()

for episode in range(10):
    next_state, reward, done = env.step(action)
    agent.learn(state, action, reward, next_state, done)
""",
    "one transition after the other": """
import torch

def replay(batch_size):
    minibatch = random.sample(memory, batch_size)
    for state, action, reward, next_state, done in minibatch:
        target = reward
        if not done:
            target = reward + gamma * torch.max(model(next_state)).item()
        predicted = model(state)
        loss = (predicted[action] - target) ** 2
        loss.backward()
""",
    "a list of targets": """
import torch

def replay(batch):
    y = [r + gamma * target(s2).max() * (1 - d) for s, a, r, s2, d in batch]
    q = net(torch.stack([each[0] for each in batch])).gather(1, actions)
    loss = (q.squeeze(1) - torch.stack(y)).pow(2).mean()
    loss.backward()
""",
    "a batch of one": """
import torch

def learn(state, action, reward, next_state):
    x, y = state.unsqueeze(0), next_state.unsqueeze(0)
    q = net(x).gather(1, action.view(1, 1))
    loss = (q - (reward + gamma * net(y).max())) ** 2
    loss.backward()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_best_value_of_a_batch(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_maxima_over_actions_and_single_transitions(lint_is_clean, script):
    lint_is_clean(script, "LOS054")
