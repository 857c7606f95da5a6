"""The handwritten digits as tensors in two parts, for the programs of this folder."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def parts():
    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    return TensorDataset(x[:1280], y[:1280]), TensorDataset(x[1280:1664], y[1280:1664])


def model_and_loaders():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Dropout(0.1), nn.Linear(48, 10))
    train, held_out = parts()
    return model, DataLoader(train, 32, shuffle=True), DataLoader(held_out, 64)
