"""ENV001: training that waits for data; a note, so scripts have no marks.

A clock that counts only the seconds asleep replaces the real one: a busy machine changes nothing.
"""

import time

import pytest

CLOCK = "trueloop.tracing.hooks.loaders.perf_counter"

HEAD = """
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

class Files(Dataset):
    def __init__(self, seconds=0.005):
        self.seconds = seconds
    def __len__(self):
        return 160
    def __getitem__(self, i):
        time.sleep(self.seconds)
        return torch.randn(6)

model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def fit(loader, work_s=0.0, batches=1000):
    for i, x in enumerate(loader):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        time.sleep(work_s)
        if i == batches:
            break
"""

FAULTY = {
    "no workers": "fit(DataLoader(Files(), 8))  # here",
    "a slow collate function": """
def collate(rows):
    time.sleep(0.03)
    return torch.stack(rows)
loader = DataLoader(torch.randn(160, 6), 8, collate_fn=collate)  # here
fit(loader)
""",
    "in a class": """
class Run:
    def __init__(self):
        self.loader = DataLoader(Files(), batch_size=4, shuffle=True)  # here
    def go(self):
        for epoch in range(2):
            fit(self.loader)
Run().go()
""",
}

CORRECT = {
    "in memory": "fit(DataLoader(torch.randn(1600, 6), 8))",
    "the model takes longer": "fit(DataLoader(Files(0.001), 8), work_s=0.03)",
    "a slow start of few batches": "fit(DataLoader(Files(0.02), 40))",
    "left early": "fit(DataLoader(Files(), 4), batches=12)",
    "held-out data": """
with torch.no_grad():
    for x in DataLoader(Files(), 8):
        model(x)
""",
}


TOO_FEW_WORKERS = """
loader = DataLoader(Files(0.02), 8, num_workers=1)  # here
fit(loader)
"""


@pytest.fixture
def asleep(monkeypatch):
    """Let the time pass in calls of ``time.sleep`` only."""
    seconds = [0.0]
    monkeypatch.setattr(time, "sleep", lambda duration: seconds.append(seconds.pop() + duration))
    monkeypatch.setattr(CLOCK, lambda: seconds[0])


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
@pytest.mark.usefixtures("asleep")
def test_run_reports_faulty_scripts(run, script):
    check_reported(run, script)


def test_run_reports_too_few_workers(run):
    """Workers sleep in processes of their own, so the real clock is needed; an update takes a tenth of their time."""
    check_reported(run, TOO_FEW_WORKERS)


def check_reported(run, script):
    ran = run(HEAD + script)
    line = next(n for n, text in enumerate(ran.path.read_text().splitlines(), 1) if text.endswith("# here"))
    assert [(found.code, found.location.line) for found in ran.findings] == [("ENV001", line)]


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
@pytest.mark.usefixtures("asleep")
def test_run_accepts_correct_scripts(run, script):
    assert not [found for found in run(HEAD + script).findings if found.code == "ENV001"]
