"""LOS018: discounted returns in the wrong order."""

import pytest

HEAD = """
import torch
from torch import nn

gamma = 0.99
policy = nn.Linear(4, 2)
optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)


def episode():
    choice = torch.distributions.Categorical(logits=policy(torch.randn(8, 4)))
    actions = choice.sample()
    return list(choice.log_prob(actions)), actions.float().tolist()

"""

TAIL = """
log_probs, rewards = episode()
loss = -(torch.stack(log_probs) * torch.tensor(returns_of(rewards))).sum()
optimizer.zero_grad()
loss.backward()
optimizer.step()
"""

FAULTY = {
    "forwards, by index": """
def returns_of(rewards):
    returns, total = [0.0] * len(rewards), 0.0
    for t in range(len(rewards)):  # <- LOS018
        total = rewards[t] + gamma * total
        returns[t] = total
    return returns
""",
    "backwards, but appended": """
def returns_of(rewards):
    returns, total = [], 0.0
    for r in reversed(rewards):
        total = r + 0.99 * total
        returns.append(total)  # <- LOS018
    return returns
""",
    "forwards, with ends of episodes": """
def returns_of(rewards):
    returns, total = [], 0.0
    for reward, done in zip(rewards, [0] * 7 + [1]):  # <- LOS018
        total = reward + gamma * total * (1 - done)
        returns.append(total)
    return returns
""",
    "accumulate, not reversed back": """
def returns_of(rewards):
    return list(accumulate(reversed(rewards), lambda total, r: r + gamma * total))  # <- LOS018
""",
    "accumulate of a slice": """
def returns_of(rewards):
    returns = itertools.accumulate(rewards[::-1], lambda g, reward: gamma * g + reward)  # <- LOS018
    return torch.tensor(list(returns)).tolist()
""",
    "accumulate, forwards": """
def returns_of(rewards):
    return [*itertools.accumulate(rewards, lambda g, r: r + 0.99 * g)]  # <- LOS018
""",
}

CORRECT = {
    "accumulate, reversed back": """
def returns_of(rewards):
    return list(accumulate(reversed(rewards), lambda total, r: r + gamma * total))[::-1]
""",
    "accumulate, reversed by a function": """
def returns_of(rewards):
    totals = list(accumulate(reversed(rewards), lambda total, r: r + gamma * total))
    totals.reverse()
    return totals
""",
    "an accumulated sum without a discount": """
def returns_of(rewards):
    return list(accumulate(rewards, lambda total, r: total + r))
""",
    "inserted at the front": """
def returns_of(rewards):
    returns, total = [], 0.0
    for r in rewards[::-1]:
        total = r + gamma * total
        returns.insert(0, total)
    return returns
""",
    "reversed afterwards": """
def returns_of(rewards):
    returns, total = [], 0.0
    for r in reversed(rewards):
        total = r + gamma * total
        returns.append(total)
    return returns[::-1]
""",
    "counted down": """
def returns_of(rewards):
    returns, total = [0.0] * len(rewards), 0.0
    for t in range(len(rewards) - 1, -1, -1):
        total = rewards[t] + gamma * total
        returns[t] = total
    return returns
""",
    "the caller reverses": """
def from_the_end(rewards):
    returns, total = [], 0.0
    for r in rewards:
        total = r + gamma * total
        returns.append(total)
    return returns

def returns_of(rewards):
    return from_the_end(rewards[::-1])[::-1]
""",
    "a running sum that normalises": """
def returns_of(rewards):
    total, largest = 0.0, 1.0
    for reward in rewards:
        total = reward + gamma * total
        largest = max(largest, abs(total))
    return [each / largest for each in rewards]
""",
    "log-probabilities in the same order": """
def returns_of(rewards):
    returns, order, total = [], [], 0.0
    for t, reward in reversed(list(enumerate(rewards))):
        total = reward + gamma * total
        returns.append(total)
        order.append(t)
    log_probs[:] = [log_probs[t] for t in order]
    return returns
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(HEAD + script + TAIL)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(HEAD + script + TAIL)
