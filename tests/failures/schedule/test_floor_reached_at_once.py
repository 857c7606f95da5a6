"""SCH019: a decayed value that is limited by its floor with ``min``."""

import pytest

HEAD = "import torch\nfrom torch import nn\n"

FAULTY = {
    "after the statement that decays": """
for episode in range(100):
    run(epsilon)
    epsilon *= eps_decay
    epsilon = min(epsilon, end_epsilon)  # <- SCH019
""",
    "an attribute, the floor first": """
class Agent:
    def after_step(self):
        self.epsilon = min(self.epsilon_min, self.epsilon * self.epsilon_decay)  # <- SCH019
""",
    "a difference": """
def decay(self):
    self.temperature = min(self.temperature - 0.01, self.min_temperature)  # <- SCH019
""",
    "a power": """
def rate(step, start, decay_rate, lr_end):
    return min(start * decay_rate ** step, lr_end)  # <- SCH019
""",
    "a learning rate": """
for epoch in range(9):
    lr = lr * 0.5
    lr = np.minimum(lr, final_lr)  # <- SCH019
""",
    "a growing weight": """
for epoch in range(9):
    beta = max(beta + 0.1, beta_max)  # <- SCH019
""",
}
CORRECT = {
    "max and a floor": """
epsilon = max(epsilon * 0.99, epsilon_min)
""",
    "a value that grows": """
beta = min(beta + step, beta_end)
""",
    "an upper limit": """
lr = min(lr * 0.9, lr_max)
""",
    "the end of a range": """
stop = min(start * size, data_end)
first = max(index - 1, index_min)
""",
    "the best so far": """
loss_min = min(loss_min, loss)
best_min = min(value, best_min)
""",
    "a sum up to the largest": """
width = max(width + margin, other)
score_max = max(score_max, score)
""",
    "a warm-up": """
lr = min(lr_end, lr * 1.1)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_it(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_other_limits(lint_is_clean, script):
    lint_is_clean(HEAD + script, "SCH019")
