"""DAT024: an environment that starts each episode with the same seed."""

import pytest

HEAD = """
import gymnasium as gym
import torch
from torch import nn
env, policy = gym.make("CartPole-v1"), nn.Linear(4, 2)
optimizer = torch.optim.Adam(policy.parameters())
def learn(states):
    optimizer.zero_grad()
    policy(states).pow(2).mean().backward()
    optimizer.step()
"""
FAULTY = {
    "a seed of Gym": """
for episode in range(100):
    env.seed(3)  # <- DAT024
    state, done = env.reset(), False
    while not done:
        state, reward, done, _ = env.step(0)
        learn(torch.as_tensor(state))
""",
    "at the end of each episode": """
def train(env, args):
    state, _ = env.reset(seed=args.seed)
    for t in range(1000):
        state, reward, terminated, truncated, _ = env.step(0)
        learn(torch.as_tensor(state))
        if terminated or truncated:
            state, _ = env.reset(seed=args.seed)  # <- DAT024
""",
    "an option": """
def train(env, args):
    for episode in range(args.episodes):
        state, _ = env.reset(seed=args.seed)  # <- DAT024
        done = False
        while not done:
            state, reward, done, _, _ = env.step(0)
            learn(torch.as_tensor(state))
""",
    "a number, in a class": """
class Agent:
    def fit(self):
        while self.count < 100:
            state = self.env.reset(seed=42)[0]  # <- DAT024
            for t in range(200):
                state, reward, done, _, _ = self.env.step(self.act(state))
                learn(torch.as_tensor(state))
""",
    "the same seed for the episodes of each run": """
for seed in range(5):
    for episode in range(100):
        state, _ = env.reset(seed=seed)  # <- DAT024
        state, reward, done, _, _ = env.step(0)
        learn(torch.as_tensor(state))
""",
}
CORRECT = {
    "a seed of Gym for each run": """
for run in range(5):
    env.seed(3)
    policy.reset_parameters()
    for episode in range(100):
        state, done = env.reset(), False
        while not done:
            state, reward, done, _ = env.step(0)
            learn(torch.as_tensor(state))
""",
    "a seed of Gym before all episodes": """
env.seed(3)
for episode in range(100):
    state, done = env.reset(), False
    while not done:
        state, reward, done, _ = env.step(0)
        learn(torch.as_tensor(state))
""",
    "a condition on the count": """
for t in range(1000):
    state, reward, done, _, _ = env.step(0)
    learn(torch.as_tensor(state))
    if t == 0:
        state, _ = env.reset(seed=3)
    elif done:
        state, _ = env.reset()
""",
    "once": """
state, _ = env.reset(seed=1)
for step in range(1000):
    state, reward, done, _, _ = env.step(0)
    learn(torch.as_tensor(state))
    if done:
        state, _ = env.reset()
""",
    "another one for each episode": """
for episode in range(100):
    state, _ = env.reset(seed=1000 + episode)
    state, reward, done, _, _ = env.step(0)
    learn(torch.as_tensor(state))
""",
    "a seed that is counted": """
seed = 0
for episode in range(100):
    seed += 1
    state, _ = env.reset(seed=seed)
    state, reward, done, _, _ = env.step(0)
    learn(torch.as_tensor(state))
""",
    "in the first episode only": """
for episode in range(100):
    state, _ = env.reset(seed=0 if episode == 0 else None)
    state, reward, done, _, _ = env.step(0)
    learn(torch.as_tensor(state))
    if episode == 0:
        state, _ = env.reset(seed=1)
""",
    "an evaluation": """
def evaluate(env, episodes=10):
    for _ in range(episodes):
        state, _ = env.reset(seed=7)
        state, reward, done, _, _ = env.step(0)
learn(torch.zeros(4))
""",
    "one seed for each run": """
for seed in range(5):
    state, _ = env.reset(seed=seed)
    for step in range(100):
        state, reward, done, _, _ = env.step(0)
        learn(torch.as_tensor(state))
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_reset(lint_reports, script):
    lint_reports(HEAD + script, fixes=False)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_other_resets(lint_is_clean, script):
    lint_is_clean(HEAD + script, "DAT024")
