"""LOS069: returns that are carried across the ends of episodes."""

import pytest

HEAD = """
import itertools
import numpy as np
import torch
from scipy.signal import lfilter
from torch import nn

gamma, lam = 0.99, 0.95
policy, critic = nn.Linear(4, 2), nn.Linear(4, 1)
optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)


class Env:
    def reset(self):
        self.steps = 0
        return torch.randn(4)

    def step(self, action):
        self.steps += 1
        return torch.randn(4), 1.0, self.steps > 5


env = Env()


def act(state):
    choice = torch.distributions.Categorical(logits=policy(state))
    action = choice.sample()
    return action, choice.log_prob(action)


def train_on(log_probs, returns):
    loss = -(torch.stack(list(log_probs)) * torch.as_tensor(list(returns))).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

"""

FAULTY = {
    "a rollout of a fixed length": """
for update in range(3):
    state, log_probs, rewards, dones = env.reset(), [], [], []
    for t in range(32):
        action, log_prob = act(state)
        state, reward, done = env.step(action)
        log_probs.append(log_prob)
        rewards.append(reward)
        dones.append(done)
        if done:
            state = env.reset()
    R, returns = 0.0, []
    for r in reversed(rewards):
        R = r + gamma * R  # <- LOS069
        returns.insert(0, R)
    train_on(log_probs, returns)
""",
    "advantages in a class, masked only in the difference": """
class Buffer:
    def __init__(self):
        self.rewards, self.values, self.ends, self.log_probs = [], [], [], []

    def add(self, reward, value, end, log_prob):
        self.rewards.append(reward)
        self.values.append(value)
        self.ends.append(end)
        self.log_probs.append(log_prob)

    def advantages(self, next_value):
        values, gae, found = [*self.values, next_value], 0.0, [0.0] * len(self.rewards)
        for i in range(len(self.rewards) - 1, -1, -1):
            delta = self.rewards[i] + gamma * values[i + 1] * (1 - self.ends[i]) - values[i]
            gae = delta + gamma * lam * gae  # <- LOS069
            found[i] = gae
        return found


def play(steps):
    buffer, state = Buffer(), env.reset()
    for _ in range(steps):
        action, log_prob = act(state)
        value = critic(state).item()
        state, reward, terminated = env.step(action)
        buffer.add(reward, value, float(terminated), log_prob)
        if terminated:
            state = env.reset()
    return buffer, critic(state).item()


for _ in range(3):
    buffer, last = play(64)
    train_on(buffer.log_probs, buffer.advantages(last))
""",
    "updated after some steps, in the middle of the episodes": """
class Memory:
    def __init__(self):
        self.log_probs, self.rewards, self.is_terminals = [], [], []

    def clear(self):
        del self.log_probs[:]
        del self.rewards[:]
        del self.is_terminals[:]


memory, step = Memory(), 0
for episode in range(100):
    state = env.reset()
    for _ in range(20):
        step += 1
        action, log_prob = act(state)
        state, reward, done = env.step(action)
        memory.log_probs.append(log_prob)
        memory.rewards.append(reward)
        memory.is_terminals.append(done)
        if step % 50 == 0:
            returns, discounted = [], 0
            for reward, terminal in zip(reversed(memory.rewards), reversed(memory.is_terminals)):
                discounted = reward + (gamma * discounted)  # <- LOS069
                returns.insert(0, discounted)
            train_on(memory.log_probs, returns)
            memory.clear()
        if done:
            break
""",
    "transitions in one list": """
for update in range(3):
    transitions = []
    for _ in range(5):
        state, done = env.reset(), False
        while not done:
            action, log_prob = act(state)
            state, reward, done = env.step(action)
            transitions.append((log_prob, reward, done))
    g, returns = 0.0, []
    for _, r, d in reversed(transitions):
        g = gamma * g + r  # <- LOS069
        returns.append(g)
    train_on([each[0] for each in transitions], returns[::-1])
""",
    "extended by each episode": """
def one_episode():
    state, log_probs, rewards, done = env.reset(), [], [], False
    while not done:
        action, log_prob = act(state)
        state, reward, done = env.step(action)
        log_probs.append(log_prob)
        rewards.append(reward)
    return log_probs, rewards


def batch(n):
    all_log_probs, all_rewards, dones = [], [], []
    for _ in range(n):
        log_probs, rewards = one_episode()
        all_log_probs.extend(log_probs)
        all_rewards.extend(rewards)
        dones += [False] * (len(rewards) - 1) + [True]
    return all_log_probs, np.array(all_rewards), np.array(dones)


for _ in range(3):
    log_probs, rew, dones = batch(4)
    to_go = np.zeros_like(rew)
    for t in reversed(range(len(rew))):
        to_go[t] = rew[t] + (gamma * to_go[t + 1] if t + 1 < len(rew) else 0)  # <- LOS069
    to_go = np.zeros(len(rew) + 1)
    for t in reversed(range(len(rew))):
        to_go[t] = rew[t] + gamma * to_go[t + 1]  # <- LOS069
    train_on(log_probs, to_go[:-1])
""",
    "a rollout class that returns itself": """
class Rollout:
    def __init__(self):
        self.kept = {"rewards": [], "dones": [], "log_probs": []}

    def collect(self, n):
        state = env.reset()
        for _ in range(n):
            action, log_prob = act(state)
            state, reward, finished = env.step(action)
            self.kept["rewards"].append(reward)
            self.kept["dones"].append(finished)
            self.kept["log_probs"].append(log_prob)
            if finished:
                state = env.reset()
        return self.kept


def to_go(steps):
    rewards = np.array(steps["rewards"])
    out, following = np.zeros(len(rewards)), 0.0
    t = len(rewards) - 1
    while t >= 0:
        following = rewards[t] + gamma * following  # <- LOS069
        out[t] = following
        t -= 1
    return out


for _ in range(3):
    rollout = Rollout()
    steps = rollout.collect(64)
    train_on(steps["log_probs"], to_go(steps))
""",
    "a function that returns the rewards": """
def rewards_of(n):
    found = []
    for _ in range(n):
        state, done = env.reset(), False
        while not done:
            action, _ = act(state)
            state, reward, done = env.step(action)
            found.append(reward)
    return found


for _ in range(3):
    rewards = torch.tensor(rewards_of(4))
    returns, after = torch.zeros_like(rewards), 0.0
    for i in range(len(rewards) - 1, -1, -1):
        after = rewards[i] + gamma * after  # <- LOS069
        returns[i] = after
    train_on(rewards, returns)
""",
    "accumulate": """
rewards, log_probs, done, state = [], [], False, env.reset()
for step in range(64):
    action, log_prob = act(state)
    state, reward, done = env.step(action)
    rewards.append(reward)
    log_probs.append(log_prob)
    state = env.reset() if done else state
returns = list(itertools.accumulate(reversed(rewards), lambda total, r: r + gamma * total))[::-1]  # <- LOS069
train_on(log_probs, returns)
""",
    "a filter over buffers of vectorised environments": """
import gymnasium as gym

envs = gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 4)
obs, _ = envs.reset()
rewards, dones, log_probs = np.zeros((64, 4)), np.zeros((64, 4)), []
for update in range(3):
    for t in range(64):
        action, log_prob = act(torch.as_tensor(obs))
        obs, reward, terminated, truncated, _ = envs.step(action.numpy())
        rewards[t], dones[t] = reward, terminated | truncated
        log_probs.append(log_prob)
    returns, total = np.zeros_like(rewards), 0
    for t in reversed(range(64)):
        total = rewards[t] + gamma * total  # <- LOS069
        returns[t] = total
    train_on(log_probs, returns)
""",
}

CORRECT = {
    "one episode for each update": """
for episode in range(3):
    state, log_probs, rewards, dones, done = env.reset(), [], [], [], False
    while not done:
        action, log_prob = act(state)
        state, reward, done = env.step(action)
        log_probs.append(log_prob)
        rewards.append(reward)
        dones.append(done)
    R, returns = 0.0, []
    for r in reversed(rewards):
        R = r + gamma * R
        returns.insert(0, R)
    train_on(log_probs, returns)
""",
    "one episode for each call, flags unused": """
def returns_of(rewards, dones):
    R, returns = 0.0, []
    for r, d in zip(reversed(rewards), reversed(dones)):
        R = r + gamma * R
        returns.insert(0, R)
    return returns


def play():
    state, log_probs, rewards, dones = env.reset(), [], [], []
    for t in range(1000):
        action, log_prob = act(state)
        state, reward, done = env.step(action)
        log_probs.append(log_prob)
        rewards.append(reward)
        dones.append(done)
        if done:
            break
    return log_probs, rewards, dones


for episode in range(3):
    log_probs, rewards, dones = play()
    train_on(log_probs, returns_of(rewards, dones))
""",
    "the list is emptied at the end of an episode": """
log_probs, rewards, state = [], [], env.reset()
for step in range(100):
    action, log_prob = act(state)
    state, reward, done = env.step(action)
    log_probs.append(log_prob)
    rewards.append(reward)
    if done:
        R, returns = 0.0, []
        for r in reversed(rewards):
            R = r + gamma * R
            returns.insert(0, R)
        train_on(log_probs, returns)
        log_probs, rewards, state = [], [], env.reset()
""",
    "masked": """
for update in range(3):
    state, log_probs, rewards, dones = env.reset(), [], [], []
    for t in range(32):
        action, log_prob = act(state)
        state, reward, done = env.step(action)
        log_probs.append(log_prob)
        rewards.append(reward)
        dones.append(done)
        if done:
            state = env.reset()
    returns, total, masks = [0.0] * 32, 0.0, [1 - d for d in dones]
    for t in reversed(range(32)):
        total = rewards[t] + gamma * masks[t] * total
        returns[t] = total
    for t in reversed(range(32)):
        mask = 1 - dones[t]
        total = rewards[t] + gamma * total * mask
    for t in reversed(range(32)):
        total = rewards[t] + gamma * total * (1 - dones[t])
    for r, d in zip(reversed(rewards), reversed(dones)):
        total = total * (1 - d)
        total = r + gamma * total
    for r, d in zip(reversed(rewards), reversed(dones)):
        total = r + gamma * total if not d else r
    for r, d in zip(reversed(rewards), reversed(dones)):
        if d:
            total = 0
        total = r + gamma * total
    for r, d in zip(reversed(rewards), reversed(dones)):
        total = np.where(d, r, r + gamma * total)
    discounts = [gamma * (1 - d) for d in dones]
    for r, discount in zip(reversed(rewards), reversed(discounts)):
        total = r + discount * total
    for t in range(31, -1, -1):
        total = rewards[t] + discounts[t] * total
    train_on(log_probs, returns)
""",
    "a loop over episodes outside": """
def run(n):
    log_probs, rewards, lengths = [], [], []
    for _ in range(n):
        state, done, length = env.reset(), False, 0
        while not done:
            action, log_prob = act(state)
            state, reward, done = env.step(action)
            log_probs.append(log_prob)
            rewards.append(reward)
            length += 1
        lengths.append(length)
    return log_probs, rewards, lengths


log_probs, rewards, lengths = run(4)
returns, start = [], 0
for length in lengths:
    R, own = 0.0, []
    for r in reversed(rewards[start : start + length]):
        R = r + gamma * R
        own.insert(0, R)
    returns += own
    start += length
train_on(log_probs, returns)
""",
    "a list for each episode": """
def to_go(rewards):
    R, returns = 0.0, []
    for r in reversed(rewards):
        R = r + gamma * R
        returns.insert(0, R)
    return returns


log_probs, batch_rewards = [], []
for _ in range(4):
    state, done, rewards = env.reset(), False, []
    while not done:
        action, log_prob = act(state)
        state, reward, done = env.step(action)
        log_probs.append(log_prob)
        rewards.append(reward)
    batch_rewards.append(rewards)
train_on(log_probs, [each for rewards in batch_rewards for each in to_go(rewards)])
""",
    "a task without episodes": """
state, done = env.reset(), False
for update in range(3):
    log_probs, rewards, dones = [], [], []
    for t in range(32):
        action, log_prob = act(state)
        state, reward, done = env.step(action)
        log_probs.append(log_prob)
        rewards.append(reward)
        dones.append(done)
    R, returns = critic(state).item(), []
    for r in reversed(rewards):
        R = r + gamma * R
        returns.insert(0, R)
    train_on(log_probs, returns)
""",
    "a few steps, until the episode ends": """
done = True
for update in range(30):
    log_probs, rewards = [], []
    if done:
        state = env.reset()
    for t in range(5):
        action, log_prob = act(state)
        state, reward, done = env.step(action)
        log_probs.append(log_prob)
        rewards.append(reward)
        if done:
            state = env.reset()
        if done:
            break
    R, returns = 0.0 if done else critic(state).item(), []
    for r in reversed(rewards):
        R = r + gamma * R
        returns.insert(0, R)
    train_on(log_probs, returns)
""",
    "episodes of one length, one row for each": """
log_probs, rewards, done = [], [], False
for _ in range(4):
    state = env.reset()
    for t in range(6):
        action, log_prob = act(state)
        state, reward, done = env.step(action)
        log_probs.append(log_prob)
        rewards.append(reward)
table = torch.tensor(rewards).view(4, 6)
returns, total = torch.zeros(4, 6), torch.zeros(4)
for t in reversed(range(6)):
    total = table[:, t] + gamma * total
    returns[:, t] = total
train_on(log_probs, returns.flatten())
""",
    "paths in a buffer, finished one by one": """
class Buffer:
    def __init__(self, size):
        self.rew, self.ret, self.ptr, self.start = np.zeros(size), np.zeros(size), 0, 0

    def store(self, reward):
        self.rew[self.ptr] = reward
        self.ptr += 1

    def finish(self, last):
        rews = np.append(self.rew[self.start : self.ptr], last)
        self.ret[self.start : self.ptr] = lfilter([1], [1, -gamma], rews[::-1])[::-1][:-1]
        self.start = self.ptr


buffer, log_probs, state = Buffer(64), [], env.reset()
for t in range(64):
    action, log_prob = act(state)
    state, reward, done = env.step(action)
    buffer.store(reward)
    log_probs.append(log_prob)
    if done or t == 63:
        buffer.finish(0.0)
        state = env.reset()
train_on(log_probs, buffer.ret)
""",
    "a running average of rewards": """
rewards, log_probs, average, state = [], [], 0.0, env.reset()
for t in range(64):
    action, log_prob = act(state)
    state, reward, done = env.step(action)
    rewards.append(reward)
    log_probs.append(log_prob)
    if done:
        state = env.reset()
for r in rewards:
    average = 0.01 * r + 0.99 * average
R, returns = 0.0, []
for r in reversed(rewards):
    R = r - average + R
    returns.insert(0, R)
train_on(log_probs, returns)
""",
}


OWN_GAME = """
for update in range(3):
    states, actions, rewards = [], [], []
    for _ in range(8):
        x, done = 0.0, False
        while not done:
            state = torch.full((4,), x)
            action, _ = act(state)
            x += 1.0 if action else -1.0
            done = abs(x) > 3
            states.append(state)
            actions.append(action)
            rewards.append(1.0)
    returns, total = [], 0.0
    for r in reversed(rewards):
        total = r + gamma * total  # <- LOS069
        returns.insert(0, total)
    logs = torch.log_softmax(policy(torch.stack(states)), -1)
    train_on(logs[range(len(actions)), actions], returns)
"""
FAULTY |= {
    "a game without an environment": OWN_GAME,
    "a game that breaks off": OWN_GAME.replace("while not done:", "for t in range(40):").replace(
        "            rewards.append(1.0)\n",
        "            rewards.append(1.0)\n            if done:\n                break\n",
    ),
}
CORRECT |= {
    "a game whose flags are stored": OWN_GAME.replace("rewards = [], [], []", "rewards, ends = [], [], [], []")
    .replace("            rewards.append(1.0)\n", "            rewards.append(1.0)\n            ends.append(done)\n")
    .replace("for r in reversed(rewards):\n", "for r, end in zip(reversed(rewards), reversed(ends)):\n")
    .replace("gamma * total  # <- LOS069", "gamma * total * (1 - end)"),
    "a game whose returns are computed for each episode": """
for update in range(3):
    states, actions, returns = [], [], []
    for _ in range(8):
        x, done, rewards = 0.0, False, []
        while not done:
            state = torch.full((4,), x)
            action, _ = act(state)
            x += 1.0 if action else -1.0
            done = abs(x) > 3
            states.append(state)
            actions.append(action)
            rewards.append(1.0)
        found, total = [], 0.0
        for r in reversed(rewards):
            total = r + gamma * total
            found.insert(0, total)
        returns += found
    logs = torch.log_softmax(policy(torch.stack(states)), -1)
    train_on(logs[range(len(actions)), actions], returns)
""",
    "one game for each update": OWN_GAME.replace("for _ in range(8):", "if update >= 0:").replace("  # <- LOS069", ""),
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(HEAD + script)


GAE_HEAD = """
import torch
from torch import nn
actor, critic = nn.Linear(4, 2), nn.Linear(4, 1)
gamma, lam = 0.99, 0.95
class Buffer:
    def __init__(self, steps):
        self.steps = steps
        self.rewards, self.dones = torch.zeros(steps), torch.zeros(steps + 1)
        self.values = torch.zeros(steps + 1)
    def add(self, t, reward, done, value):
        self.rewards[t] = reward
        {store}
        self.values[t] = value
    def advantages(self, last_value, last_done):
        advantages, running = torch.zeros_like(self.rewards), 0.0
        for t in reversed(range(self.steps)):
            {cut}
            delta = self.rewards[t] + gamma * next_value * nonterminal - self.values[t]
            running = delta + gamma * lam * nonterminal * running
            advantages[t] = running
        return advantages
def collect(env, buffer):
    state, done = env.reset(), False
    for t in range(buffer.steps):
        value = critic(state)
        {before}
        state, reward, done, info = env.step(actor(state).argmax())
        {after}
    return buffer.advantages(critic(state), done)
"""
STORED, ADDED = "self.dones[t] = torch.as_tensor(done).float()", "buffer.add(t, reward, done, value)"
NEXT = "nonterminal = 1.0 - self.dones[t + 1]"
ARMS = """if t == self.steps - 1:
                next_value = last_value
                {last}
            else:
                next_value = self.values[t + 1]
                {other}"""


def gae(cut: str, store: str = STORED, before: str = "pass", after: str = ADDED) -> str:
    script = GAE_HEAD.replace("{store}", store).replace("{cut}", cut)
    return script.replace("{before}", before).replace("{after}", after)


def arms(last: str, other: str) -> str:
    return ARMS.replace("{last}", last).replace("{other}", other)


OTHER_END = {
    "two flags": gae(arms("nonterminal = 1.0 - self.dones[t]", f"{NEXT}  # <- LOS069")),
    "the last flag": gae(
        arms("nonterminal = ~self.dones[-1]", "nonterminal = ~self.dones[t + 1]  # <- LOS069"), store="pass"
    ),
    "an expression": gae(
        "next_value = self.values[t + 1]\n"
        "            nonterminal = 1 - self.dones[t] if t == self.steps - 1 else 1 - self.dones[t + 1]  # <- LOS069"
    ),
    "stored after the step": gae(f"next_value = self.values[t + 1]\n            {NEXT}  # <- LOS069"),
    "terminated or truncated": gae(
        f"next_value = self.values[t + 1]\n            {NEXT}  # <- LOS069",
        after="over = done or bool(info)\n        buffer.add(t, reward, over, value)",
    ),
}
OWN_END = {
    "its own flag": gae("next_value = self.values[t + 1]\n            nonterminal = 1.0 - self.dones[t]"),
    "stored before the step": gae(
        arms("nonterminal = 1.0 - last_done", NEXT), before="buffer.dones[t] = done", store="pass", after="pass"
    ),
    "stored at the next step": gae(
        f"next_value = self.values[t + 1]\n            {NEXT}", store="self.dones[t + 1] = float(done)"
    ),
    "stored in an unknown way": gae(f"next_value = self.values[t + 1]\n            {NEXT}", store="pass"),
    "the flag of the previous step, passed": gae(
        arms("nonterminal = 1.0 - last_done", NEXT),
        before="flag = float(done)",
        after="buffer.add(t, reward, flag, value)",
    ),
}


@pytest.mark.parametrize("script", OTHER_END.values(), ids=OTHER_END)
def test_lint_reports_the_flag_of_the_next_step(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", OWN_END.values(), ids=OWN_END)
def test_lint_accepts_flags_that_are_stored_one_step_later(lint_is_clean, script):
    lint_is_clean(script, "LOS069")


PARTS_HEAD = """
import torch


def advantages_of(rewards, values, next_values, dones, last_value, gamma=0.99, lam=0.95):
    total, found = 0, []
    values = values + [last_value]
    following = last_value
    for t in reversed(range(len(rewards))):
        delta = {delta}
        total = {total}
        following = values[t]
        found.insert(0, total + values[t])
    return found
"""
BOTH = """
import torch


class Storage:
    def insert(self, step, reward, mask):
        self.rewards[step].copy_(reward)
        self.masks[step + 1].copy_(mask)

    def compute_returns(self, next_value, use_gae, gamma, tau):
        if use_gae:
            gae = 0
            for t in reversed(range(self.rewards.size(0))):
                delta = self.rewards[t] + gamma * self.values[t + 1]{first} - self.values[t]{mark}
                gae = delta + gamma * tau{first} * gae
                self.returns[t] = gae + self.values[t]
        else:
            self.returns[-1] = next_value
            for t in reversed(range(self.rewards.size(0))):
                self.returns[t] = self.returns[t + 1] * gamma * self.masks[t + 1] + self.rewards[t]
"""
MASKED = "delta + gamma * lam * (1 - dones[t]) * total"
PARTLY_MASKED = {
    "the values of a list": PARTS_HEAD.format(
        delta="rewards[t] + gamma * values[t + 1] - values[t]  # <- LOS069", total=MASKED
    ),
    "a variable": PARTS_HEAD.format(delta="rewards[t] + gamma * following - values[t]  # <- LOS069", total=MASKED),
    "one of two ways": BOTH.format(first="", mark="  # <- LOS069"),
    "all deltas at once": """
import numpy as np
import torch


def gae(rewards, values, dones, gamma, lam):
    deltas = rewards + gamma * values[1:] - values[:-1]  # <- LOS069
    found, last = np.zeros_like(rewards), 0
    for t in reversed(range(len(rewards))):
        last = deltas[t] + gamma * lam * last * (1 - dones[t])
        found[t] = last
    return found
""",
}
FULLY_MASKED = {
    "both masked": PARTS_HEAD.format(
        delta="rewards[t] + gamma * values[t + 1] * (1 - dones[t]) - values[t]", total=MASKED
    ),
    "values of the states that were reached": PARTS_HEAD.format(
        delta="rewards[t] + gamma * next_values[t] - values[t]", total=MASKED
    ),
    "a single episode": PARTS_HEAD.format(
        delta="rewards[t] + gamma * values[t + 1] * (1 - dones[t]) - values[t]", total="delta + gamma * lam * total"
    ),
    "two ways with masks": BOTH.format(first=" * self.masks[t + 1]", mark=""),
    "a discount for each step": PARTS_HEAD.replace(
        "    for t", "    discounts = gamma * (1 - dones)\n    for t"
    ).format(delta="rewards[t] + discounts[t] * values[t + 1] - values[t]", total="delta + discounts[t] * lam * total"),
    "values that are set to zero": PARTS_HEAD.replace(
        "    for t", "    values = [v * m for v, m in zip(values, masks)]\n    for t"
    ).format(delta="rewards[t] + gamma * values[t + 1] - values[t]", total=MASKED),
}


@pytest.mark.parametrize("script", PARTLY_MASKED.values(), ids=PARTLY_MASKED)
def test_lint_reports_a_part_without_a_mask(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", FULLY_MASKED.values(), ids=FULLY_MASKED)
def test_lint_accepts_masks_in_all_parts(lint_is_clean, script):
    lint_is_clean(script, "LOS069")
