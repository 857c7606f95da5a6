"""LOS047: a temperature on the student's side only."""

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn

def distil(student, teacher, x, T=4.0):
    s = student(x)
    with torch.no_grad():
        t = teacher(x)
"""
FAULTY = {
    "functions": """
    return F.kl_div(F.log_softmax(s / T, 1), F.softmax(t, 1), reduction="batchmean") * T * T  # <- LOS047
""",
    "methods": """
    target = t.softmax(1)  # <- LOS047
    return F.kl_div((s / T).log_softmax(1), target, reduction="batchmean")
""",
    "modules": """
    kd_loss = nn.KLDivLoss(reduction="batchmean")
    return kd_loss(nn.LogSoftmax(dim=1)(s / T), nn.Softmax(dim=1)(t)) * T ** 2  # <- LOS047
""",
    "a number": """
    p = F.softmax(teacher(x), dim=-1)  # <- LOS047
    return F.kl_div(F.log_softmax(s / 3, dim=-1), p, reduction="batchmean")
""",
}
CORRECT = {
    "both": 'return F.kl_div(F.log_softmax(s / T, 1), F.softmax(t / T, 1), reduction="batchmean") * T * T',
    "none": 'return F.kl_div(F.log_softmax(s, 1), F.softmax(t, 1), reduction="batchmean")',
    "a target that is sharpened": 'return F.kl_div(F.log_softmax(s, 1), F.softmax(t / 0.4, 1), reduction="batchmean")',
    "softened before": 't = t / T; return F.kl_div(F.log_softmax(s / T, 1), F.softmax(t, 1), reduction="batchmean")',
    "a scaled similarity": 'z = x @ x.T; return F.kl_div(F.log_softmax(s / 8, 1), F.softmax(z, 1), reduction="sum")',
    "a sharpened student": 'return F.kl_div(F.log_softmax(s / 0.1, 1), F.softmax(t, 1), reduction="batchmean")',
}


@pytest.mark.parametrize("name", FAULTY)
def test_lint_reports_it(lint_reports, name):
    lint_reports(HEAD + FAULTY[name])


@pytest.mark.parametrize("name", CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, name):
    lint_is_clean(HEAD + "    " + CORRECT[name].replace("; ", "\n    "), "LOS047")
