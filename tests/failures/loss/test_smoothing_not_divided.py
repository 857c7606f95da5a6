"""LOS050: label smoothing that is not divided by the number of classes."""

import pytest

CODE = """
import torch
import torch.nn.functional as F

def loss_fn(logits, labels, eps=0.1):
    classes = logits.size(-1)
    {smooth}
    return -(target * F.log_softmax(logits, dim=-1)).sum(-1).mean()
"""


def code(smooth: str) -> str:
    return CODE.replace("{smooth}", smooth.replace("\n", "\n    "))


FAULTY = {
    "one_hot": code("target = F.one_hot(labels, classes).float()\ntarget = target * (1 - eps) + eps  # <- LOS050"),
    "in one line": code("target = (1 - eps) * F.one_hot(labels, classes) + eps  # <- LOS050"),
    "scatter": code(
        "hot = torch.zeros_like(logits)\nhot.scatter_(1, labels.unsqueeze(1), 1)\n"
        "target = (1 - eps) * hot + eps  # <- LOS050"
    ),
    "numbers": code("target = 0.1 + 0.9 * torch.eye(classes)[labels]  # <- LOS050"),
    "an identity matrix": code("hot = torch.eye(classes)[labels]\ntarget = hot * (1 - eps) + eps  # <- LOS050"),
}
CORRECT = {
    "divided": code("target = (1 - eps) * F.one_hot(labels, classes) + eps / classes"),
    "divided before": code(
        "hot = F.one_hot(labels, classes)\ntarget = (1 - eps) * hot + eps\ntarget = target / target.sum(1)"
    ),
    "divided in place": code("eps /= classes\ntarget = (1 - eps) * F.one_hot(labels, classes) + eps"),
    "the factor of a learning rate": code(
        "target = F.one_hot(labels, classes)\nrate = lambda x: (1 - x / 30) * (1 - eps) + eps"
    ),
    "another expression": code("target = F.one_hot(labels, classes)\nlogits = (logits / 2) * (1 - eps) + eps"),
    "another value": code("target = (1 - eps) * F.one_hot(labels, classes) + 0.01"),
    "a moving average": code("target = (1 - eps) * logits + eps"),
    "a uniform target": code("target = (1 - eps) * F.one_hot(labels, classes) + eps * torch.ones(classes) / classes"),
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_smoothing_of_every_class(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(script, "LOS050")
