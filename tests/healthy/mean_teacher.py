"""Mean teacher: the student learns from labels and from a teacher that is the moving average of itself."""

import copy

import torch
import torch.nn.functional as F
from sklearn.datasets import make_moons
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
X, y = make_moons(600, noise=0.15, random_state=0)
X, y = torch.tensor(X, dtype=torch.float32), torch.tensor(y)
labelled = DataLoader(TensorDataset(X[:40], y[:40]), batch_size=20, shuffle=True)
unlabelled = DataLoader(TensorDataset(X[40:520]), batch_size=80, shuffle=True)


def build():
    return nn.Sequential(nn.Linear(2, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2))


student = build()
teacher = copy.deepcopy(student)
for p in teacher.parameters():
    p.detach_()


@torch.no_grad()
def update_teacher(step, alpha=0.98):
    alpha = min(1 - 1 / (step + 1), alpha)
    for ema, p in zip(teacher.parameters(), student.parameters()):
        ema.mul_(alpha).add_(p, alpha=1 - alpha)
    for ema, b in zip(teacher.buffers(), student.buffers()):
        ema.copy_(b)


opt = torch.optim.Adam(student.parameters(), lr=1e-2)
step = 0
for epoch in range(6):
    student.train()
    teacher.train()
    labels = iter(labelled)
    for (u,) in unlabelled:
        try:
            xl, yl = next(labels)
        except StopIteration:
            labels = iter(labelled)
            xl, yl = next(labels)
        supervised = F.cross_entropy(student(xl), yl)
        with torch.no_grad():
            target = F.softmax(teacher(u + 0.05 * torch.randn_like(u)), dim=1)
        consistency = F.mse_loss(F.softmax(student(u + 0.05 * torch.randn_like(u)), dim=1), target)
        loss = supervised + min(1.0, epoch / 3) * consistency
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        update_teacher(step)
    teacher.eval()
    with torch.no_grad():
        acc = (teacher(X[520:]).argmax(1) == y[520:]).float().mean().item()
    print(epoch, loss.item(), acc)
