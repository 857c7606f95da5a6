"""REINFORCE after pytorch/examples, with a small corridor instead of a gym environment."""

from collections import deque

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.distributions import Categorical


class Corridor:
    """Walk right to the goal; observations are one-hot."""

    def __init__(self, n=6):
        self.n = n

    def reset(self):
        self.at = self.n // 2
        return F.one_hot(torch.tensor(self.at), self.n).float()

    def step(self, action):
        self.at += 1 if action == 1 else -1
        done = self.at in (0, self.n - 1)
        return F.one_hot(torch.tensor(self.at), self.n).float(), float(self.at == self.n - 1) - 0.01, done


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1 = nn.Linear(6, 24)
        self.dropout = nn.Dropout(p=0.1)
        self.affine2 = nn.Linear(24, 2)
        self.saved_log_probs = []
        self.rewards = []

    def forward(self, x):
        x = F.relu(self.dropout(self.affine1(x)))
        return F.softmax(self.affine2(x), dim=1)


torch.manual_seed(543)
env = Corridor()
policy = Policy()
optimizer = optim.Adam(policy.parameters(), lr=1e-2)
eps = 1e-6


def select_action(state):
    probs = policy(state.unsqueeze(0))
    m = Categorical(probs)
    action = m.sample()
    policy.saved_log_probs.append(m.log_prob(action))
    return action.item()


def finish_episode():
    R = 0
    policy_loss = []
    returns = deque()
    for r in policy.rewards[::-1]:
        R = r + 0.97 * R
        returns.appendleft(R)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std(unbiased=False) + eps)
    for log_prob, R in zip(policy.saved_log_probs, returns):
        policy_loss.append(-log_prob * R)
    optimizer.zero_grad()
    policy_loss = torch.cat(policy_loss).sum()
    policy_loss.backward()
    optimizer.step()
    del policy.rewards[:]
    del policy.saved_log_probs[:]


def main():
    running_reward = 0.0
    for i_episode in range(40):
        state, ep_reward = env.reset(), 0
        for t in range(1, 30):
            action = select_action(state)
            state, reward, done = env.step(action)
            policy.rewards.append(reward)
            ep_reward += reward
            if done:
                break
        running_reward = 0.05 * ep_reward + (1 - 0.05) * running_reward
        finish_episode()
    print(running_reward)


if __name__ == "__main__":
    main()
