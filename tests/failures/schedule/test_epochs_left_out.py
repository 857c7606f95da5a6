"""SCH017: a schedule in epochs that is stepped in every k-th epoch."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, LinearLR, MultiStepLR, StepLR

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train_epoch():
    for rows in torch.randperm(64).split(16):
        optimizer.zero_grad()
        model(torch.randn(16, 4)).pow(2).mean().backward()
        optimizer.step()

"""
FAULTY = {
    "the same number": """
sched = StepLR(optimizer, 20)
for epoch in range(300):
    train_epoch()
    if epoch % 20 == 0:
        sched.step()  # <- SCH017
""",
    "milestones": """
milestones = [30, 60]
lr_schedule = MultiStepLR(optimizer, milestones=milestones, gamma=0.1)
for epoch in range(1, 90 + 1):
    train_epoch()
    if not epoch % 5:
        lr_schedule.step()  # <- SCH017
""",
    "a cosine over all epochs": """
def fit(epochs, every=5):
    cosine = CosineAnnealingLR(optimizer, T_max=epochs)
    for epoch in range(epochs):
        train_epoch()
        if (epoch + 1) % every == 0:
            cosine.step()  # <- SCH017

fit(50, 10)
""",
    "a constant": """
EPOCHS = 40
scheduler = CosineAnnealingLR(optimizer, 40)
for e in range(EPOCHS):
    train_epoch()
    if e % 4 == 3:
        scheduler.step()  # <- SCH017
""",
    "a step size within the run": """
scheduler = StepLR(optimizer, step_size=25, gamma=0.5)
for epoch in range(100):
    train_epoch()
    if epoch % 10 == 9:
        scheduler.step()  # <- SCH017
""",
}
CORRECT = {
    "each epoch": """
scheduler = StepLR(optimizer, step_size=10)
for epoch in range(40):
    train_epoch()
    scheduler.step()
    if epoch % 10 == 0:
        print(epoch)
""",
    "a size of one": """
scheduler = StepLR(optimizer, step_size=1, gamma=0.5)
for epoch in range(40):
    train_epoch()
    if epoch % 10 == 9:
        scheduler.step()
""",
    "exponential": """
scheduler = ExponentialLR(optimizer, gamma=0.5)
for epoch in range(40):
    train_epoch()
    if epoch % 10 == 9:
        scheduler.step()
""",
    "counted in calls": """
EPOCHS = 100
scheduler = CosineAnnealingLR(optimizer, T_max=EPOCHS // 10)
for epoch in range(EPOCHS):
    train_epoch()
    if (epoch + 1) % 10 == 0:
        scheduler.step()
""",
    "milestones in calls": """
scheduler = MultiStepLR(optimizer, [4, 8])
for epoch in range(100):
    train_epoch()
    if (epoch + 1) % 10 == 0:
        scheduler.step()
""",
    "another step outside": """
scheduler = StepLR(optimizer, step_size=5)
for epoch in range(40):
    train_epoch()
    if epoch % 5 == 0:
        scheduler.step()
    else:
        scheduler.step()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(HEAD + script)
