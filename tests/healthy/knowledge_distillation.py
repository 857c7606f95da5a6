"""Distillation: a trained teacher in eval mode without graph, the student with a temperature-scaled KL (batchmean)."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset


def train_plain(model, loader, epochs=2):
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    model.train()
    for _ in range(epochs):
        for x, y in loader:
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()


def distill(teacher, student, loader, T=3.0, alpha=0.7, epochs=2):
    teacher.eval()
    student.train()
    opt = torch.optim.Adam(student.parameters(), lr=3e-3)
    for _ in range(epochs):
        for x, y in loader:
            opt.zero_grad()
            with torch.no_grad():
                t = teacher(x)
            s = student(x)
            soft = nn.KLDivLoss(reduction="batchmean")(F.log_softmax(s / T, dim=1), F.softmax(t / T, dim=1)) * T * T
            loss = alpha * soft + (1 - alpha) * F.cross_entropy(s, y)
            loss.backward()
            opt.step()
    return loss.item()


@torch.inference_mode()
def test(model, x, y):
    was = model.training
    model.eval()
    acc = (model(x).argmax(1) == y).float().mean().item()
    model.train(was)
    return acc


torch.manual_seed(0)
d = load_digits()
X, y = torch.tensor(d.data, dtype=torch.float32) / 16, torch.tensor(d.target)
loader = DataLoader(TensorDataset(X[:1280], y[:1280]), batch_size=64, shuffle=True)
teacher = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.3), nn.Linear(128, 10))
student = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
train_plain(teacher, loader)
print(distill(teacher, student, loader), test(teacher, X[1280:], y[1280:]), test(student, X[1280:], y[1280:]))
