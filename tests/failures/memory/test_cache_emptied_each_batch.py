"""MEM004: empty_cache after every batch."""

import pytest

HEAD = """
import gc
import torch
from torch import nn

x = torch.randn(96, 6)
y = x.sum(1, keepdim=True)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = nn.functional.mse_loss
"""

CORRECT = {
    "once in an epoch": """
for epoch in range(3):
    for _ in range(4):
        mse(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.empty_cache()
""",
    "now and then": """
for number in range(12):
    mse(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
    if number % 100 == 0:
        torch.cuda.empty_cache()
""",
    "after an error": """
for _ in range(3):
    try:
        mse(model(x), y).backward()
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
    optimizer.step()
    optimizer.zero_grad()
""",
    "in an evaluation": """
for _ in range(3):
    mse(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
with torch.no_grad():
    for _ in range(3):
        model(x)
        torch.cuda.empty_cache()
""",
}

FAULTY = {
    "at the end of the iteration": """
for _ in range(3):
    optimizer.zero_grad()
    mse(model(x), y).backward()
    optimizer.step()
    torch.cuda.empty_cache()  # <- MEM004
""",
    "in a helper": """
def clean():
    gc.collect()
    torch.cuda.empty_cache()  # <- MEM004
for _ in range(3):
    mse(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
    clean()
""",
    "in a class, with accumulation": """
class Trainer:
    def step(self, number):
        (mse(model(x), y) / 2).backward()
        torch.cuda.empty_cache()  # <- MEM004
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
trainer = Trainer()
for number in range(4):
    trainer.step(number)
""",
    "imported by name, with a scaler": """
from torch.cuda import empty_cache
scaler = torch.amp.GradScaler("cuda")
for epoch in range(2):
    for _ in range(3):
        empty_cache()  # <- MEM004
        optimizer.zero_grad()
        scaler.scale(mse(model(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(HEAD + script, fixes=False)  # the mark is a comment, which would go with the line


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(HEAD + script, "MEM004")
