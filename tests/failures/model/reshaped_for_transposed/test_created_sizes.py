"""MDL017: views of created tensors whose sizes come in another order."""

import pytest

HEAD = """
import numpy as np
import torch
from torch import nn
"""

FAULTY = {
    "rewards of rollouts": """
class Rollout:
    def rewards(self, sentences, rollouts, judge):
        batch = sentences.size(0)
        rewards = torch.zeros([rollouts * self.length, batch]).float()
        if self.gpu:
            rewards = rewards.cuda()
        row = 0
        for i in range(rollouts):
            for step in range(1, self.length + 1):
                rewards[row] = judge(sentences, step)
                row += 1
        return torch.mean(rewards.view(batch, self.length, rollouts), dim=-1)  # <- MDL017
""",
    "outputs of a decoder": """
def decode(cell, x, steps, batch, words):
    outputs = torch.zeros(steps, batch, words, device=x.device)
    for step in range(steps):
        x = cell(x)
        outputs[step] = x
    return outputs.view(batch, steps, -1)  # <- MDL017
""",
    "rows of NumPy": """
def collect(env, workers, steps):
    states = np.zeros((workers, steps, 8))
    for step in range(steps):
        states[:, step] = env.step()
    return torch.from_numpy(states.reshape(steps, workers, 8))  # <- MDL017
""",
}

CORRECT = {
    "split and merged next to each other": """
def decode(cell, x, steps, batch, words):
    outputs = torch.zeros(steps, batch, words)
    for step in range(steps):
        outputs[step] = x = cell(x)
    return outputs.view(steps * batch, words), outputs.reshape(-1, words), outputs.view(steps, 1, batch, words)
""",
    "exchanged": """
def decode(cell, x, steps, batch, words):
    outputs = torch.zeros(steps, batch, words)
    for step in range(steps):
        outputs[step] = x = cell(x)
    outputs = outputs.transpose(0, 1).contiguous()
    return outputs.view(batch, steps, words)
""",
    "the order of the rollouts": """
def rewards(judge, rollouts, length, batch):
    rewards = torch.zeros(rollouts * length, batch)
    for row in range(rollouts * length):
        rewards[row] = judge(row)
    return rewards.view(rollouts, length, batch).mean(0).t()
""",
    "nothing but zeros": """
def state(layers, batch, size):
    return torch.zeros(layers, batch, size).view(batch, layers, size)
""",
    "equal sizes": """
def grid(size):
    table = torch.zeros(size, size, 3)
    table[0, 0] = 1.0
    return table.view(size, size, 3), table.view(3, size, size)
""",
    "columns of a flat array": """
def decode(counts, height, width):
    mask = np.empty(height * width, dtype=bool)
    first = 0
    for count in counts:
        mask[first : first + count] = True
        first += count
    return mask.reshape(width, height).transpose()
""",
    "other sizes": """
def cut(size, heads):
    table = torch.zeros(size, 64)
    table[0] = 1.0
    return table.view(heads, size // heads, 64)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_views_in_another_order(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_views_in_order(lint_is_clean, script):
    lint_is_clean(HEAD + script, "MDL017")
