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


RUN = """
import torch
from torch import nn

class V0:
    def __init__(self):
        self.v1, self.v2 = [], []

torch.manual_seed(0)
v3 = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
v4 = torch.optim.SGD(v3.parameters(), lr=0.01)
for v5 in range(4):
    v6, v7 = V0(), []
    for v8 in torch.randn(10, 4):
        v9 = torch.distributions.Categorical(logits=v3(v8))
        v10 = v9.sample()
        v6.v1.append(v9.log_prob(v10))
        v6.v2.append({reward})
    v11 = 0.0
{sums}
    v12 = torch.tensor(v7)
    v13 = {loss}
    v4.zero_grad()
    v13.backward()
    v4.step()
"""
RANDOM = "float(v10 == (v8[0] > 0))"
FORWARD = "    for v14 in v6.v2:\n        v11 = v14 + 0.98 * v11\n        v7.append(v11)"
BACKWARD = "    for v14 in v6.v2[::-1]:\n        v11 = v14 + 0.98 * v11\n        v7.{store}v11)"
APPENDED, INSERTED = BACKWARD.format(store="append("), BACKWARD.format(store="insert(0, ")
PRODUCT = "-(torch.stack(v6.v1) * v12).sum()"
NORMALISED = "(-torch.stack(v6.v1) * ((v12 - v12.mean()) / (v12.std() + 1e-8))).mean()"
LIST = "torch.stack([-v15 * v16 for v15, v16 in zip(v6.v1, v7)]).sum()"
FAULTY_RUNS = {
    "sums of the past": (RANDOM, FORWARD, PRODUCT),
    "appended": (RANDOM, APPENDED, PRODUCT),
    "equal rewards, normalised": ("1.0", FORWARD, NORMALISED),
    "appended, normalised": (RANDOM, APPENDED, NORMALISED),
    "a list of terms": (RANDOM, APPENDED, LIST),
    "a sum of terms, with the discount in a variable": (
        RANDOM,
        "    v17 = 0.93\n" + FORWARD.replace("0.98", "v17"),
        "sum(-v15 * v16 for v15, v16 in zip(v6.v1, v7))",
    ),
}
CORRECT_RUNS = {
    "inserted": (RANDOM, INSERTED, PRODUCT),
    "inserted, normalised": ("1.0", INSERTED, NORMALISED),
    "equal rewards without a discount": ("1", INSERTED.replace("0.98 * ", ""), PRODUCT),
    "a list of terms": (RANDOM, INSERTED, LIST),
    "reversed afterwards": (RANDOM, APPENDED + "\n    v7 = v7[::-1]", PRODUCT),
    "reversed log-probabilities": (RANDOM, APPENDED, "-(torch.stack(v6.v1[::-1]) * v12).sum()"),
    "reversed log-probabilities in a list": (RANDOM, APPENDED, LIST.replace("zip(v6.v1,", "zip(reversed(v6.v1),")),
    "the sum of all": (RANDOM, INSERTED, "-torch.stack(v6.v1).sum() * sum(v6.v2)"),
    "other weights": (RANDOM, INSERTED, "-(torch.stack(v6.v1) * torch.rand(10)).sum()"),
    "rewards as weights": (RANDOM, INSERTED, "-(torch.stack(v6.v1) * torch.tensor(v6.v2)).sum()"),
    "traces of the past": (
        RANDOM,
        INSERTED,
        "-sum(v16 * sum(0.98 ** (v17 - v18) * v6.v1[v18] for v18 in range(v17 + 1)) for v17, v16 in enumerate(v6.v2))",
    ),
}


@pytest.mark.parametrize(("reward", "sums", "loss"), FAULTY_RUNS.values(), ids=FAULTY_RUNS.keys())
def test_run_reports_wrong_orders(run_reports, reward, sums, loss):
    script = RUN.format(reward=reward, sums=sums, loss=loss)
    run_reports(script.replace("v13.backward()", "v13.backward()  # <- LOS018"))


@pytest.mark.parametrize(("reward", "sums", "loss"), CORRECT_RUNS.values(), ids=CORRECT_RUNS.keys())
def test_run_accepts_returns(run_is_clean, reward, sums, loss):
    run_is_clean(RUN.format(reward=reward, sums=sums, loss=loss))
