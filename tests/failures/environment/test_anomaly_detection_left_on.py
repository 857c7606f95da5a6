"""ENV006: anomaly detection that is left on."""

import pytest
import torch

HEAD = """
import torch
from torch import nn

x = torch.randn(32, 6)
y = x.sum(1, keepdim=True)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = nn.functional.mse_loss
def update(optimizer=optimizer, scaler=torch.amp.GradScaler("cpu", enabled=False)):
    optimizer.zero_grad()
    scaler.scale(mse(model(x), y)).backward()
    scaler.step(optimizer)
    scaler.update()
"""

CORRECT = {
    "never on": """
for _ in range(48):
    update()
""",
    "a few updates": """
with torch.autograd.set_detect_anomaly(mode=torch.is_grad_enabled()):
    for _ in range(4):
        update()
for _ in range(44):
    update()
""",
    "the start, switched off again": """
torch.autograd.set_detect_anomaly(True)
for _ in range(20):
    update()
torch.autograd.set_detect_anomaly(False)
for _ in range(44):
    update()
""",
    "twice, for a few updates each": """
for _ in range(2):
    torch.autograd.set_detect_anomaly(True)
    for _ in range(20):
        update()
    torch.autograd.set_detect_anomaly(False)
    for _ in range(4):
        update()
""",
    "behind a switch": """
debug = False
if debug:
    torch.autograd.set_detect_anomaly(True)
for _ in range(48):
    update()
""",
}

FAULTY = {
    "for the full program": """
torch.autograd.set_detect_anomaly(True)  # <- ENV006
for _ in range(48):
    update()
""",
    "in a class": """
class Trainer:
    def __init__(self):
        torch.autograd.set_detect_anomaly(mode=True)  # <- ENV006
    def fit(self):
        for _ in range(48):
            update()
Trainer().fit()
""",
    "around each update, in a function": """
from torch.autograd import set_detect_anomaly
def guarded():
    with set_detect_anomaly(True):  # <- ENV006
        update()
for _ in range(48):
    guarded()
""",
    "around the loop, with a scaler and two optimizers": """
scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
second = torch.optim.Adam(model.parameters(), lr=0.001)
def fit():
    with torch.autograd.set_detect_anomaly(True, check_nan=False):  # <- ENV006
        for number in range(56):
            update(second if number % 2 else optimizer, scaler)
fit()
""",
}


@pytest.fixture(autouse=True)
def switched_off():
    yield
    torch.autograd.set_detect_anomaly(False)


def noted_lines(ran):
    return {found.location.line for found in ran.findings if found.code == "ENV006"}


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script)


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_notes_the_line(run, script):
    ran = run(HEAD + script)
    assert noted_lines(ran) == {
        (HEAD + script).splitlines().index(line) + 1 for line in script.splitlines() if "<-" in line
    }
    assert not ran.reported_lines


# The rule --------------------------------------------------------------------------------------------------------

LINT_FAULTY = {
    "only from here": """
if __name__ == "__main__":
    with torch.autograd.detect_anomaly():  # <- ENV006
        update()
""",
    "by Lightning": """
import lightning as L
trainer = L.Trainer(max_epochs=3, detect_anomaly=True)  # <- ENV006
""",
}

LINT_CORRECT = {
    "by a setting": "torch.autograd.set_detect_anomaly(args.debug)\n",
    "only after an error": """
try:
    update()
except RuntimeError:
    with torch.autograd.detect_anomaly():
        update()
""",
    "a trial": """
def culprit():
    with torch.autograd.set_detect_anomaly(True):
        try:
            update()
        except RuntimeError as error:
            return str(error)
""",
    "another trial": """
try:
    with torch.autograd.set_detect_anomaly(True):
        update()
except RuntimeError as error:
    print(error)
""",
    "in a test": """
def test_gradients():
    with torch.autograd.detect_anomaly():
        update()
""",
}


@pytest.mark.parametrize("name", [*FAULTY, *LINT_FAULTY])
def test_lint_reports_faulty_scripts(lint_reports, name):
    lint_reports(HEAD + {**FAULTY, **LINT_FAULTY}[name], fixes=True)


@pytest.mark.parametrize("name", [*CORRECT, *LINT_CORRECT])
def test_lint_accepts_correct_scripts(lint_is_clean, name):
    lint_is_clean(HEAD + {**CORRECT, **LINT_CORRECT}[name], "ENV006")
