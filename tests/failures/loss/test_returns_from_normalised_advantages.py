"""LOS024: value targets that are computed from normalised advantages."""

import pytest

HEAD = """
import torch
from torch import nn
"""

FAULTY = {
    "in a function": """
def targets(rewards, vals):
    adv = rewards - vals
    adv = (adv - adv.mean()) / (adv.std() + 1e-8)
    return adv, adv + vals  # <- LOS024
""",
    "as attributes": """
class Buffer:
    def finish(self):
        mean, std = self.advantages.mean(), self.advantages.std()
        self.advantages = (self.advantages - mean) / std
        self.returns = self.advantages + self.values  # <- LOS024
""",
    "in another function": """
def estimate(rewards, values):
    gae = rewards - values
    return (gae - torch.mean(gae)) / torch.std(gae)
def collect(rewards, values):
    advantages = estimate(rewards, values)
    return values + advantages  # <- LOS024
""",
    "a function for it": """
from helpers import normalize
def collect(advantages, values):
    advantages = normalize(advantages)
    v_target = advantages + values  # <- LOS024
    return v_target
""",
    "in place": """
def collect(adv, values):
    adv -= adv.mean()
    adv /= adv.std() + 1e-8
    return [a + v for a, v in zip(adv, values)]  # <- LOS024
""",
    "batches": """
def update(batch, advantages, values):
    if len(advantages) > 1:
        advantages = (advantages - advantages.mean()) / advantages.std(unbiased=False)
    for index in batch:
        yield advantages[index].detach() + values[index]  # <- LOS024
""",
}

CORRECT = {
    "the returns first": """
def targets(adv, vals):
    returns = adv + vals
    adv = (adv - adv.mean()) / (adv.std() + 1e-8)
    return adv, returns
""",
    "another name": """
def targets(adv, vals):
    normalised = (adv - adv.mean()) / (adv.std() + 1e-8)
    return normalised, adv + vals
""",
    "attributes in the right order": """
class Buffer:
    def finish(self):
        self.returns = self.advantages + self.values
        self.advantages = (self.advantages - self.advantages.mean()) / self.advantages.std()
""",
    "a duelling network": """
class Net(nn.Module):
    def forward(self, x):
        value, adv = self.value(x), self.advantage(x)
        return value + (adv - adv.mean(1, keepdim=True))
""",
    "scaled back": """
def targets(adv, vals):
    mean, std = adv.mean(), adv.std()
    adv = (adv - mean) / std
    return adv, (adv * std + mean) + vals
""",
    "another sum": """
def bonus(adv, entropy):
    adv = (adv - adv.mean()) / adv.std()
    return adv + 0.01 * entropy
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports(lint_reports, script: str):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts(lint_is_clean, script: str):
    lint_is_clean(HEAD + script, "LOS024")
