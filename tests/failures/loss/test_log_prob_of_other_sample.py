"""LOS045: the log-probability of a sample that is drawn only for it."""

import pytest

HEAD = "import torch\nfrom torch.distributions import Categorical\n"
FAULTY = {
    "returned together": """
def act(policy, state):
    dist = Categorical(logits=policy(state))
    return dist.sample().item(), dist.log_prob(dist.sample())  # <- LOS045
""",
    "an attribute": """
class Agent:
    def step(self, state):
        self.dist = self.policy(state)
        self.action = self.dist.sample()
        self.log_prob = self.dist.log_prob(self.dist.sample()).sum(-1)  # <- LOS045
""",
}
CORRECT = {
    "the same action": """
def act(policy, state):
    dist = Categorical(logits=policy(state))
    action = dist.sample()
    return action.item(), dist.log_prob(action)
""",
    "an estimate of the entropy": """
def entropy(dist):
    return -dist.log_prob(dist.sample()).mean()
""",
    "two distributions": """
def ratio(p, q):
    x = p.sample()
    return p.log_prob(x) - q.log_prob(q.sample())
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_log_prob_of_another_sample(lint_reports, script):
    lint_reports(HEAD + script, fixes=False)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_the_log_prob_of_the_action(lint_is_clean, script):
    lint_is_clean(HEAD + script, "LOS045")
