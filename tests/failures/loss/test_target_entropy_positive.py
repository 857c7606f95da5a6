"""LOS043: target entropies with the wrong sign."""

import pytest

AGENT = """
import numpy as np
import torch

class SAC:
    def __init__(self, env, action_dim):
        self.log_alpha = torch.zeros(1, requires_grad=True)
        self.target_entropy = {target}
        self.alpha_optimizer = torch.optim.Adam([self.log_alpha], lr=3e-4)

    def update_alpha(self, states):
        actions, log_pi = self.policy.sample(states)
        entropy = -log_pi
        alpha_loss = {loss}
        self.alpha_optimizer.zero_grad()
        alpha_loss.backward()
        self.alpha_optimizer.step()
"""
STANDARD = "-(self.log_alpha * (log_pi + self.target_entropy).detach()).mean()"
MARK = "  # <- LOS043"
FAULTY = {
    "a number": ("float(action_dim)" + MARK, STANDARD),
    "a shape": ("np.prod(env.action_space.shape)" + MARK, STANDARD),
    "a tensor": ("torch.prod(torch.Tensor(env.action_space.shape)).item()" + MARK, STANDARD),
    "half of it": ("0.5 * action_dim" + MARK, STANDARD),
    "an entropy": ("action_dim" + MARK, "(self.log_alpha * (entropy - self.target_entropy).detach()).mean()"),
    "subtracted": ("-action_dim" + MARK, "-(self.log_alpha * (log_pi - self.target_entropy).detach()).mean()"),
    "negated": ("action_dim" + MARK, "(self.log_alpha.exp() * (-log_pi - self.target_entropy).detach()).mean()"),
}
CORRECT = {
    "a number": ("-float(action_dim)", STANDARD),
    "a shape": ("-np.prod(env.action_space.shape).item()", STANDARD),
    "a product": ("-1.0 * action_dim", STANDARD),
    "discrete": ("0.98 * np.log(action_dim)", STANDARD),
    "discrete, negated twice": ("-0.98 * np.log(1 / action_dim)", STANDARD),
    "subtracted": ("action_dim", "-(self.log_alpha * (log_pi - self.target_entropy).detach()).mean()"),
    "an entropy": ("-action_dim", "(self.log_alpha * (entropy - self.target_entropy).detach()).mean()"),
    "a given one": ("env.target_entropy", STANDARD),
}


@pytest.mark.parametrize(("target", "loss"), FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_a_wrong_sign(lint_reports, target, loss):
    lint_reports(AGENT.format(target=target, loss=loss))


@pytest.mark.parametrize(("target", "loss"), CORRECT.values(), ids=CORRECT.keys())
def test_lint_ignores_correct_programs(lint_is_clean, target, loss):
    lint_is_clean(AGENT.format(target=target, loss=loss), "LOS043")
