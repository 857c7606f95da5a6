"""SCH015: schedules that are advanced only when the model improves."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, ReduceLROnPlateau, StepLR

model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = StepLR(optimizer, 5)
"""
FAULTY = {
    "a loop": """
best_acc = 0.0
for epoch in range(20):
    train(model, optimizer)
    acc = evaluate(model)
    if acc > best_acc:
        best_acc = acc
        scheduler.step()  # <- SCH015
""",
    "a class": """
class Trainer:
    def __init__(self, model):
        self.model, self.best_loss = model, float("inf")
        self.optimizer = torch.optim.Adam(model.parameters())
        self.sched = CosineAnnealingLR(self.optimizer, 50)
    def epoch_ended(self, loss):
        if loss < self.best_loss:
            self.best_loss = loss
            torch.save(self.model.state_dict(), "best.pt")
            self.sched.step()  # <- SCH015
""",
}
CORRECT = {
    "after the branch": FAULTY["a loop"].replace("        scheduler.step()  # <- SCH015", "    scheduler.step()"),
    "in both branches": FAULTY["a loop"].replace("  # <- SCH015", "\n    else:\n        scheduler.step()"),
    "a plateau": """
scheduler = ReduceLROnPlateau(optimizer)
best_loss = 9.0
for epoch in range(20):
    loss = evaluate(model)
    scheduler.step(loss)
    if loss < best_loss:
        best_loss = loss
        torch.save(model.state_dict(), "best.pt")
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_conditional_steps(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_other_steps(lint_is_clean, script):
    lint_is_clean(HEAD + script, "SCH015")
