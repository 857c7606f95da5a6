"""DAT033: epsilon-greedy policies that explore with probability 1 - epsilon."""

import pytest

HEAD = """
import random
import numpy as np
import torch
"""
GREEDY_FIRST = """
def select(net, s{parameter}):
    if np.random.uniform() < {epsilon}:{mark}
        return net(s).argmax(-1)
    return np.random.randint(0, 4)
"""


def greedy_first(before: str, epsilon: str = "epsilon", parameter: str = "", mark: str = "") -> str:
    return before + GREEDY_FIRST.format(epsilon=epsilon, parameter=parameter, mark=mark)


MARK = "  # <- DAT033"
FAULTY = {
    "a function": """
def act(q, state, eps):
    if random.random() > eps:  # <- DAT033
        return random.randrange(4)
    return q(state).argmax().item()
""",
    "a class": """
class Agent:
    def act(self, state):
        if np.random.rand() >= self.epsilon:  # <- DAT033
            action = self.env.action_space.sample()
        else:
            with torch.no_grad():
                action = self.q_net(state).max(1)[1].item()
        return action
""",
    "the greedy branch first": """
def select(net, s, epsilon):
    if torch.rand(1).item() < epsilon:  # <- DAT033
        return net(s).argmax(-1)
    return torch.randint(0, 4, (1,))
""",
    "an expression": """
def select(net, s, eps_threshold):
    return np.random.randint(4) if eps_threshold < random.random() else int(net(s).argmax())  # <- DAT033
""",
    "a small constant": greedy_first("epsilon = 0.1\n", mark=MARK),
    "a default": greedy_first("", "eps", ", eps=0.05", MARK),
    "it falls": greedy_first("epsilon = 1.0\nfor t in range(9):\n    epsilon *= 0.9\n", mark=MARK),
    "it falls to a limit": greedy_first(
        "epsilon = 0.9\nfor t in range(9):\n    epsilon = max(0.05, epsilon - 0.01)\n", mark=MARK
    ),
    "a function computes it": greedy_first("epsilon = 1.0\nepsilon = schedule(3)\n", mark=MARK),
}
CORRECT = {
    "a constant of 0.9": greedy_first("epsilon = 0.9\n"),
    "a constant attribute": greedy_first(
        "class Options:\n    epsilon: float = 0.95\nargs = Options()\n", "args.epsilon"
    ),
    "a default of 0.9": greedy_first("", "eps", ", eps=0.9"),
    "an option": greedy_first("p.add_argument('--epsilon', type=float, default=0.9)\n", "args.epsilon"),
    "an argument": greedy_first("select(q, s, epsilon=0.9)\n", "epsilon", ", epsilon"),
    "it grows": greedy_first("epsilon = 0.0\nfor t in range(9):\n    epsilon += 0.1\n"),
    "it grows to a limit": greedy_first("epsilon = 0\nfor t in range(9):\n    epsilon = min(epsilon + 0.1, 0.9)\n"),
    "it grows from an argument": """
class Agent:
    def __init__(self, start, step):
        self.epsilon, self.step = start, step
        self.epsilon = start
    def act(self, net, s):
        if random.random() < self.epsilon:
            return net(s).argmax(-1)
        return random.randrange(4)
    def learn(self):
        self.epsilon = min(self.epsilon + self.step, 1)
""",
    "less than epsilon": """
def act(q, state, eps):
    if random.random() < eps:
        return random.randrange(4)
    return q(state).argmax().item()
""",
    "more than epsilon is greedy": """
def select_action(state):
    eps_threshold = 0.1
    if random.random() > eps_threshold:
        with torch.no_grad():
            return policy_net(state).max(1).indices.view(1, 1)
    else:
        return torch.tensor([[env.action_space.sample()]])
""",
    "the probability of the greedy action": """
def act(q, state, p_greedy):
    if random.random() > p_greedy:
        return random.randrange(4)
    return q(state).argmax().item()
""",
    "teacher forcing": """
def step(out, target, epsilon):
    if random.random() > epsilon:
        return target
    return out.argmax(-1)
""",
    "noise": """
def noisy(x, eps):
    if random.random() > eps:
        return x + torch.randn_like(x)
    return x.max()
""",
    "a schedule": """
if epsilon > 0.05:
    epsilon = max(0.05, epsilon * 0.99)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_comparison(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "DAT033")
