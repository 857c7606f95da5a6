"""DAT053: time stamps in float32."""

import pytest

HEAD = """
import math
import time
import numpy as np
import pandas as pd
import torch
from torch import nn
rng = np.random.default_rng(0)
"""

FAULTY = {
    "gaps between events": """
first = 1_650_000_000
events = np.sort(first + rng.integers(0, 10_000, 500))
when = torch.from_numpy(events).float()  # <- DAT053
gaps = when[1:] - when[:-1]
""",
    "a dataset of a log": """
class Log(torch.utils.data.Dataset):
    def __init__(self, path):
        table = pd.read_csv(path)
        self.t = torch.tensor(table["unix_time"].values, dtype=torch.float32)  # <- DAT053
        self.y = torch.tensor(table["load"].values, dtype=torch.float32)
        self.phase = torch.sin(2 * math.pi * self.t / 3600)
    def __len__(self):
        return len(self.y)
    def __getitem__(self, i):
        return self.phase[i], self.y[i]
""",
    "a function that gets dates": """
def minute_of_hour(dates):
    seconds = np.array([each.timestamp() for each in dates], dtype=np.float32)  # <- DAT053
    return torch.from_numpy(seconds % 3600 / 60)
""",
    "the clock": """
def cycle(period=60.0):
    now = torch.tensor(time.time(), dtype=torch.float32)  # <- DAT053
    return torch.fmod(now, period)
""",
    "differences by diff": """
start = 1.6e9
stamps = start + np.cumsum(rng.exponential(3.0, 1000))
dt = torch.diff(torch.FloatTensor(stamps))  # <- DAT053
""",
    "a range": """
ticks = np.arange(1_700_000_000, 1_700_086_400, 30).astype(np.float32)  # <- DAT053
slot = ticks // 900
x = torch.from_numpy(slot)
""",
}

CORRECT = {
    "in float64": """
stamps = 1_650_000_000 + rng.integers(0, 10_000, 500)
t = torch.tensor(stamps, dtype=torch.float64)
phase = (t % 300 / 300).float()
""",
    "the start is subtracted": """
start = 1_650_000_000
stamps = start + rng.integers(0, 10_000, 500)
t = torch.tensor(stamps - start, dtype=torch.float32)
phase = t % 300 / 300
""",
    "the first one is subtracted": """
stamps = 1_650_000_000 + np.sort(rng.integers(0, 10_000, 500))
t = torch.from_numpy(stamps - stamps[0]).float()
gaps = t[1:] - t[:-1]
""",
    "the phase in numpy": """
stamps = 1_650_000_000 + rng.integers(0, 10_000, 500)
phase = torch.tensor(stamps % 300 / 300, dtype=torch.float32)
wave = torch.sin(2 * math.pi * phase)
""",
    "a day": """
DAY = 24 * 3600
stamps = 1_650_000_000 + rng.integers(0, 10 * DAY, 500)
t = torch.tensor(stamps, dtype=torch.float32)
day = torch.sin(2 * math.pi * (t % DAY) / DAY)
""",
    "a trend": """
stamps = 1_650_000_000 + rng.integers(0, 10**8, 500)
t = torch.tensor(stamps, dtype=torch.float32)
t = (t - t.mean()) / t.std()
x = torch.sin(t)
""",
    "how long a run takes": """
begin = time.time()
model = nn.Linear(3, 1)
seconds = torch.tensor(time.time() - begin, dtype=torch.float32)
left = seconds % 60
""",
    "another large number": """
SEED = 1_234_567_890
torch.manual_seed(SEED)
x = torch.tensor(rng.normal(size=10), dtype=torch.float32)
y = x % 2 + SEED % 7
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_rounded_times(lint_reports, script):
    lint_reports(HEAD + script, fixes=False)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_times_that_are_exact_enough(lint_is_clean, script):
    lint_is_clean(HEAD + script, "DAT053")
