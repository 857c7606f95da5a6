"""ENV008: a flag for an evaluation that a policy never reads."""

import pytest

AGENT = """
import random

import numpy as np
import torch
from torch import nn


class Agent:
    def __init__(self, sigma, weights):
        self.actor, self.sigma = nn.Linear(4, 2), sigma
        self.optimizer = torch.optim.Adam(self.actor.parameters(), lr=1e-3)

    def learn(self, states):
        loss = -self.actor(states).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

{act}

    def evaluate(self, env):
        state, done, total = env.reset(), False, 0
        while not done:
            state, reward, done, _ = env.step(self.act(state, {given}))
            total += reward
        return total
"""
FAULTY = {
    "noise": (
        """
    def act(self, state, evaluation=False):  # <- ENV008
        action = self.actor(torch.as_tensor(state)).detach().numpy()
        return np.clip(action + np.random.normal(scale=self.sigma, size=2), -1, 1)
""",
        "evaluation=True",
    ),
    "an object that makes noise": (
        """
    def act(self, state, add_noise=True):  # <- ENV008
        state = torch.from_numpy(state).float()
        with torch.no_grad():
            action = self.actor(state).numpy()
        return action + self.noise.sample()
""",
        "False",
    ),
    "an assertion": (
        """
    def act(self, state, episode=None, test=False):  # <- ENV008
        assert episode is not None or test
        if random.random() < 0.1:
            return random.randrange(2)
        return self.actor(torch.as_tensor(state)).argmax().item()
""",
        "test=True",
    ),
    "torch": (
        """
    def act(self, obs, deterministic=False):  # <- ENV008
        mean = self.actor(obs)
        return mean + 0.1 * torch.randn_like(mean)
""",
        "deterministic=True",
    ),
}
CORRECT = {
    "the flag is read": (
        """
    def act(self, state, evaluation=False):
        action = self.actor(torch.as_tensor(state)).detach().numpy()
        return action if evaluation else action + np.random.normal(size=2)
""",
        "evaluation=True",
    ),
    "a random policy": (
        """
    def act(self, state, evaluation=False):
        return np.random.uniform(size=2)
""",
        "evaluation=True",
    ),
    "a policy without noise": (
        """
    def act(self, state, evaluation=False):
        return self.actor(torch.as_tensor(state)).detach().numpy()
""",
        "evaluation=True",
    ),
    "no caller passes it": (
        """
    def act(self, state, evaluation=False):
        action = self.actor(torch.as_tensor(state)).detach().numpy()
        return action + np.random.normal(size=2)
""",
        "",
    ),
    "passed on": (
        """
    def act(self, state, evaluation=False):
        action = self.actor(torch.as_tensor(state)).detach().numpy()
        return action + self.noise.sample(evaluation)
""",
        "evaluation=True",
    ),
    "an abstract method": (
        """
    def act(self, state, evaluation=False):
        raise NotImplementedError
""",
        "evaluation=True",
    ),
}


@pytest.mark.parametrize(("act", "given"), FAULTY.values(), ids=FAULTY)
def test_lint_reports_flags_that_a_policy_ignores(lint_reports, act, given):
    lint_reports(AGENT.format(act=act, given=given))


@pytest.mark.parametrize(("act", "given"), CORRECT.values(), ids=CORRECT)
def test_lint_accepts_policies(lint_is_clean, act, given):
    lint_is_clean(AGENT.format(act=act, given=given))
