"""LOS078: a time limit that is treated as a terminal state, and correct programs that look like it."""

import pytest

HEAD = """
import random
import gymnasium as gym
import numpy as np
import torch
from torch import nn

env = gym.make("CartPole-v1")
q, target_q = nn.Linear(4, 2), nn.Linear(4, 2)
gamma = 0.99

class Buffer:
    def __init__(self):
        self.rows = []
    def push(self, *row):
        self.rows.append(row)
    def sample(self, n):
        return map(torch.tensor, zip(*random.sample(self.rows, n)))

def learn(memory):
    states, actions, rewards, next_states, dones = memory.sample(32)
    with torch.no_grad():
        targets = rewards + gamma * target_q(next_states).max(1).values * (1 - dones.float())
    return nn.functional.mse_loss(q(states).gather(1, actions[:, None])[:, 0], targets)

memory = Buffer()
state = first()
"""
STEP = """
for step in range(1000):
    action = env.action_space.sample()
    next_state, reward, terminated, truncated, info = env.step(action)
"""
FAULTY = {
    "a variable": f"""{STEP}
    done = terminated or truncated
    memory.push(state, action, reward, next_state, done)  # <- LOS078
    learn(memory).backward()
    state = env.reset()[0] if done else next_state
""",
    "in the call, as a number": f"""{STEP}
    memory.push(state, action, reward, next_state, float(terminated or truncated))  # <- LOS078
    learn(memory).backward()
""",
    "other names, vectors": """
for step in range(1000):
    actions = env.action_space.sample()
    next_obs, rewards, terms, truncs, info = env.step(actions)
    dones = np.logical_or(terms, truncs)
    memory.push(state, actions, rewards, next_obs, dones)  # <- LOS078
    learn(memory).backward()
""",
    "a deque": """
from collections import deque
history = deque(maxlen=1000)
def play():
    state, _ = env.reset()
    done = False
    while not done:
        action = env.action_space.sample()
        next_state, r, terminated, truncated, _ = env.step(action)
        done = truncated or terminated
        history.append((state, action, r, next_state, done))  # <- LOS078
        state = next_state
        learn(memory).backward()
""",
    "an environment of the program": """
class Cart:
    def step(self, action):
        self.steps += 1
        self.position += action
        done = abs(self.position) > 2 or self.steps >= self.max_steps
        return self.position, 1.0, done, {}
env = Cart()
for step in range(1000):
    action = env.action_space.sample()
    next_state, reward, done, _ = env.step(action)
    memory.push(state, action, reward, next_state, done)  # <- LOS078
    state = env.reset() if done else next_state
    learn(memory).backward()
""",
    "a condition in the environment of the program": """
class Cart:
    def step(self, state, action, time):
        if abs(state[2]) >= 0.5 or time >= 20:
            terminated = True
        else:
            terminated = False
        return state, 1.0, terminated, False, {}
env = Cart()
for step in range(1000):
    action = env.action_space.sample()
    next_state, reward, terminated, truncated, _ = env.step(state, action, step)
    memory.push(state, action, reward, next_state, terminated)  # <- LOS078
    state = env.reset() if terminated else next_state
    learn(memory).backward()
""",
    "an environment without terminal states": """
for step in range(1000):
    action = env.action_space.sample()
    next_state, reward, done, _ = env.step(action)
    memory.push(state, action, reward, next_state, done)  # <- LOS078
    learn(memory).backward()
""",
}
CORRECT = {
    "an environment of the program with both flags": """
class Cart:
    def step(self, action):
        self.steps += 1
        terminated = abs(self.position) > 2
        truncated = self.steps >= self.max_steps
        return self.position, 1.0, terminated, truncated, {}
env = Cart()
for step in range(1000):
    action = env.action_space.sample()
    next_state, reward, terminated, truncated, _ = env.step(action)
    memory.push(state, action, reward, next_state, terminated)
    state = env.reset() if terminated or truncated else next_state
    learn(memory).backward()
""",
    "an environment of the program without a limit": """
class Cart:
    def step(self, action):
        self.position += action
        done = abs(self.position) >= 2 or self.lives == 0
        return self.position, 1.0, done, {}
env = Cart()
for step in range(1000):
    action = env.action_space.sample()
    next_state, reward, done, _ = env.step(action)
    memory.push(state, action, reward, next_state, done)
    state = env.reset() if done else next_state
    learn(memory).backward()
""",
    "terminated is stored": f"""{STEP}
    done = terminated or truncated
    memory.push(state, action, reward, next_state, terminated)
    learn(memory).backward()
    state = env.reset()[0] if done else next_state
""",
    "both are stored": f"""{STEP}
    done = terminated or truncated
    memory.push(state, action, reward, next_state, terminated, done)
    learn(memory).backward()
""",
    "the next state is None after a terminal state": f"""{STEP}
    done = terminated or truncated
    if terminated:
        next_state = None
    memory.push(state, action, reward, next_state)
    learn(memory).backward()
""",
    "the old interface with terminal states": """
for step in range(1000):
    action = env.action_space.sample()
    next_state, reward, done, _ = env.step(action)
    memory.push(state, action, reward, next_state, done)
    learn(memory).backward()
""",
    "the limit taken out": """
for step in range(1000):
    action = env.action_space.sample()
    next_state, reward, done, _ = env.step(action)
    done_bool = 0.0 if step + 1 == env._max_episode_steps else float(done)
    memory.push(state, action, reward, next_state, done_bool)
    learn(memory).backward()
""",
    "a setting decides": f"""{STEP}
    if args.bootstrap:
        done = terminated
    else:
        done = terminated or truncated
    memory.push(state, action, reward, next_state, done)
    learn(memory).backward()
""",
    "only logged": f"""{STEP}
    done = terminated or truncated
    memory.push(state, action, reward, next_state, terminated)
    print(reward, done)
    learn(memory).backward()
""",
}


def _head(name: str) -> str:
    return HEAD.replace("CartPole-v1", "Pendulum-v0") if "without terminal" in name else HEAD


@pytest.mark.parametrize("name", FAULTY)
def test_lint_reports_faulty_scripts(lint_reports, name):
    lint_reports(_head(name) + FAULTY[name])


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(HEAD + script, "LOS078")


def test_lint_accepts_rollouts(lint_is_clean):
    lint_is_clean("""
import torch
def collect(env, policy, value, gamma=0.99):
    state, _ = env.reset()
    rows = []
    for step in range(128):
        dist = policy(state)
        action = dist.sample()
        next_state, reward, terminated, truncated, _ = env.step(action)
        done = terminated or truncated
        rows.append((state, action, reward, next_state, done))
        state = env.reset()[0] if done else next_state
    for state, action, reward, next_state, done in rows:
        delta = reward + gamma * value(next_state) * (1 - done) - value(state)
    return delta
""")


def test_lint_accepts_an_endless_environment_with_the_limit_taken_out(lint_is_clean):
    lint_is_clean(
        HEAD.replace("CartPole-v1", "HalfCheetah-v2")
        + """
for step in range(1000):
    action = env.action_space.sample()
    next_state, reward, done, _ = env.step(action)
    done_bool = float(done) if step < env._max_episode_steps else 0
    memory.push(state, action, reward, next_state, done_bool)
    learn(memory).backward()
""",
        "LOS078",
    )
