"""DAT057: features that are smoothed over later values of the series that is predicted."""

import pytest

HEAD = """
import numpy as np
import pandas as pd
import torch
from torch import nn
from scipy.ndimage import gaussian_filter1d
from scipy.signal import butter, filtfilt, lfilter, savgol_filter

def train(x, y):
    model = nn.Linear(x.shape[-1], 1)
    opt = torch.optim.Adam(model.parameters())
    for rows in torch.randperm(len(x)).split(32):
        loss = nn.functional.mse_loss(model(x[rows].float()).squeeze(1), y[rows].float())
        opt.zero_grad()
        loss.backward()
        opt.step()

price = np.cumsum(np.random.randn(800))
"""
FAULTY = {
    "a moving average in a function": """
def moving_average(p, k):
    return np.convolve(p, np.ones(k) / k, mode="same")  # <- DAT057
def table(price, horizon=5):
    cols = [price - moving_average(price, k) for k in (5, 10)]
    up = price[horizon:] > price[:-horizon]
    x = np.stack(cols, 1)[: len(up)]
    return x, up
train(*map(torch.tensor, table(price)))
""",
    "a table": """
def features(df):
    df["mean"] = df["close"].rolling(9, center=True).mean()  # <- DAT057
    df["gap"] = df["close"] - df["mean"]
    df["target"] = df["close"].shift(-1)
    return df.dropna()
df = features(pd.DataFrame({"close": price}))
train(torch.tensor(df[["mean", "gap"]].values), torch.tensor(df["target"].values))
""",
    "the whole series, then windows": """
def windows(series, width):
    smooth = savgol_filter(series, 11, 3)  # <- DAT057
    xs, ys = [], []
    for t in range(len(series) - width):
        xs.append(smooth[t : t + width])
        ys.append(series[t + width])
    return np.array(xs), np.array(ys)
train(*map(torch.tensor, windows(price, 20)))
""",
    "windows of smoothed values": """
b, a = butter(3, 0.1)
smooth = filtfilt(b, a, price)  # <- DAT057
x = torch.tensor(np.array([smooth[t : t + 20] for t in range(700)]))
targets = []
for t in range(700):
    targets.append(smooth[t + 20])
train(x, torch.tensor(targets))
""",
    "a column by its attribute": """
df = pd.DataFrame({"load": price})
df["trend"] = gaussian_filter1d(df.load.values, 3)  # <- DAT057
df["next_load"] = df.load.shift(-24)
train(torch.tensor(df[["trend"]].values), torch.tensor(df["next_load"].values))
""",
}
CORRECT = {
    "past values only": """
df = pd.DataFrame({"close": price})
df["mean"] = df["close"].rolling(9).mean()
df["target"] = df["close"].shift(-1)
smooth = np.convolve(price, np.ones(5) / 5)[: len(price)]
up = price[5:] > price[:-5]
train(torch.tensor(df[["mean"]].values), torch.tensor(df["target"].values))
""",
    "shifted to later rows": """
df = pd.DataFrame({"close": price})
df["mean"] = df["close"].rolling(9, center=True).mean().shift(5)
df["target"] = df["close"].shift(-1)
train(torch.tensor(df[["mean"]].values), torch.tensor(df["target"].values))
""",
    "recordings that are classified": """
def load(signals, labels):
    b, a = butter(4, [0.1, 0.4], "band")
    x = np.stack([filtfilt(b, a, each) for each in signals])
    y = labels[1:]
    return torch.tensor(x[1:]), torch.tensor(y)
train(*load(np.random.randn(40, 800), np.random.randn(40)))
""",
    "a smoothed target": """
def table(series, horizon):
    target = savgol_filter(series, 11, 3)
    y = target[horizon:] - series[:-horizon]
    x = np.stack([series, np.gradient(series)], 1)[: len(y)]
    return torch.tensor(x), torch.tensor(y)
train(*table(price, 5))
""",
    "smoothed trend as the target of raw windows": """
trend = savgol_filter(price, 11, 3)
xs, ys = [], []
for t in range(700):
    xs.append(price[t : t + 20])
    ys.append(trend[t + 20])
train(torch.tensor(np.array(xs)), torch.tensor(ys))
""",
    "only the known window": """
xs, ys = [], []
for t in range(700):
    window = price[t : t + 20]
    xs.append(savgol_filter(window, 7, 2))
    ys.append(price[t + 20])
train(torch.tensor(np.array(xs)), torch.tensor(ys))
""",
    "only shown": """
import matplotlib.pyplot as plt
smooth = np.convolve(price, np.ones(9) / 9, mode="same")
plt.plot(price)
plt.plot(smooth)
plt.plot(savgol_filter(price, 11, 3))
up = price[5:] > price[:-5]
train(torch.tensor(price[:-5, None]), torch.tensor(up))
""",
    "a curve of losses": """
losses = []
for epoch in range(50):
    losses.append(float(epoch))
curve = np.convolve(losses, np.ones(5) / 5, mode="same")
target = price[1:]
train(torch.tensor(price[:-1, None]), torch.tensor(target))
""",
    "a causal filter": """
b, a = butter(3, 0.1)
smooth = lfilter(b, a, price)
targets = price[20:]
train(torch.tensor(np.array([smooth[t : t + 20] for t in range(700)])), torch.tensor(targets))
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_features_with_later_values(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_other_smoothing(lint_is_clean, script):
    lint_is_clean(HEAD + script, "DAT057")
