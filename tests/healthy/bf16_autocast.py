"""bfloat16 autocast without a scaler, float32 master weights, evaluation under the same autocast."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def epoch(model, loader, opt=None):
    training = opt is not None
    model.train(training)
    total = right = n = 0
    with torch.set_grad_enabled(training):
        for x, y in loader:
            with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
                logits = model(x)
                loss = nn.functional.cross_entropy(logits, y)
            if training:
                opt.zero_grad()
                loss.backward()
                opt.step()
            total += loss.item() * len(y)
            right += (logits.argmax(-1) == y).sum().item()
            n += len(y)
    return total / n, right / n


def main():
    torch.manual_seed(0)
    d = load_digits()
    x, y = torch.tensor(d.data, dtype=torch.float32) / 16, torch.tensor(d.target)
    train = DataLoader(TensorDataset(x[:1400], y[:1400]), 100, shuffle=True)
    test = DataLoader(TensorDataset(x[1400:], y[1400:]), 100)
    model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for e in range(2):
        print(e, epoch(model, train, opt), epoch(model, test))


if __name__ == "__main__":
    main()
