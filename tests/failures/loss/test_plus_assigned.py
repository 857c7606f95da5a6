"""LOS072: ``=+`` that should be ``+=``."""

import pytest

HEAD = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def batches():
    return [torch.randn(8, 4) for _ in range(5)]
"""
FAULTY = {
    "a term": """
for x in batches():
    loss = model(x).pow(2).mean()
    loss =+ model(x).abs().mean()  # <- LOS072
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "a total": """
total = 0
for x in batches():
    total =+ model(x).sum().item()  # <- LOS072
print(total)
""",
    "a counter of a class": """
class Meter:
    def __init__(self):
        self.count = 0
    def update(self, n):
        self.count =+n  # <- LOS072
""",
    "a penalty that is subtracted": """
for x in batches():
    loss = model(x).pow(2).mean()
    loss =- 0.1 * model(x).abs().mean()  # <- LOS072
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
}
CORRECT = {
    "added": """
total = 0
for x in batches():
    total += model(x).sum().item()
""",
    "a sign": """
offset = 2
offset = +1
lowest=-1
lowest = -offset
x=-offset
x =-offset
""",
    "keywords and comparisons": """
total = 0
total = max(total, dict(key=-total)["key"])
is_less = total >=-offset if (offset := 2) else None
def f(a=-1, b=+2):
    return a
""",
    "the first value": """
for x in batches():
    loss =- model(x).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_assignment(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_signs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "LOS072")
