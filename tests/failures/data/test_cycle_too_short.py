"""DAT062: cyclic features of which the first and the last value are the same."""

import pytest

HEAD = """
import math
import numpy as np
import pandas as pd
import torch

df = pd.read_csv("demand.csv", parse_dates=["time"])
"""

FAULTY = {
    "a column": """
df["hour_sin"] = np.sin(2 * np.pi * df["hour"] / 23.0)  # <- DAT062
df["hour_cos"] = np.cos(2 * np.pi * df["hour"] / 23.0)  # <- DAT062
""",
    "scaled before": """
def encode(stamp):
    hour = stamp.hour / 23.0  # <- DAT062
    weekday = stamp.weekday() / 6.0  # <- DAT062
    return [np.sin(2 * np.pi * hour), np.cos(2 * np.pi * hour), np.sin(2 * np.pi * weekday)]
""",
    "the factor in brackets": """
df["sin"] = np.sin(df.time.dt.minute * (2.0 * np.pi / 59))  # <- DAT062
df["day"] = torch.cos(torch.tensor(df["DayOfWeek"].values) / 6 * 2 * torch.pi)  # <- DAT062
""",
    "a function of a column": """
def encode(data, column, largest):
    data[column + "_sin"] = np.sin(2 * np.pi * data[column] / largest)
    data[column + "_cos"] = np.cos(2 * np.pi * data[column] / largest)
    return data
df = encode(df, "month", 12)
df = encode(df, "hour", 23)  # <- DAT062
df = encode(df, "day", 31)
""",
    "months from 0": """
class Times(torch.utils.data.Dataset):
    def __getitem__(self, index):
        stamp = self.stamps[index]
        angle = math.tau * (stamp.month - 1) / 11  # <- DAT062
        return torch.tensor([math.sin(angle), math.cos(angle)])
""",
    "the maximum of the column": """
df["hour_sin"] = np.sin(2 * np.pi * df["hour"] / df["hour"].max())  # <- DAT062
""",
}

CORRECT = {
    "the number of values": """
df["hour_sin"] = np.sin(2 * np.pi * df["hour"] / 24)
df["day_cos"] = np.cos(2 * np.pi * df.time.dt.dayofweek / 7.0)
df["month_cos"] = np.cos(2 * np.pi * df["month"] / 12)
df["month_sin"] = np.sin(2 * np.pi * (df["month"] - 1) / 12)
""",
    "only scaled": """
df["hour"] = df["hour"] / 23.0
df["minute"] = df["minute"] / 59.0 - 0.5
df["wave"] = np.sin(df["x"] * 2 * np.pi / 23)
""",
    "half a cycle": 'df["light"] = np.sin(np.pi * df["hour"] / 23)',
    "another cycle": """
df["tide"] = np.sin(2 * np.pi * df["hours_since_start"] / 11)
df["half"] = np.sin(2 * np.pi * df["hour_of_week"] / 168)
df["third"] = np.sin(2 * np.pi * df["hour"] / 6)
""",
    "a function with the number of values": """
def encode(data, column, period):
    data[column + "_sin"] = np.sin(2 * np.pi * data[column] / period)
    return data
df = encode(df, "hour", 24)
df = encode(df, "weekday", period=7)
df = encode(df, "temperature", 23)
""",
    "one more than the maximum": 'df["h"] = np.sin(2 * np.pi * df["hour"] / (df["hour"].max() + 1))',
    "a maximum that is the period": 'df["m"] = np.sin(2 * np.pi * df["month"] / df["month"].max())',
    "positions": """
position = torch.arange(512)[:, None]
table = torch.sin(2 * math.pi * position / 10000 ** (torch.arange(0, 64, 2) / 64))
month = df["month"].max()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_periods_that_are_the_largest_value(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_other_periods(lint_is_clean, script):
    lint_is_clean(HEAD + script, "DAT062")
