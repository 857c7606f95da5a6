"""The mixed-precision recipe, with the clipping in its position from before the scaler was added."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_loaders(batch_size):
    g = torch.Generator().manual_seed(5)
    x = torch.randn(1024, 24, generator=g)
    y = (x[:, :8].sum(1) > x[:, 8:16].sum(1)).long()
    train, val = TensorDataset(x[:768], y[:768]), TensorDataset(x[768:], y[768:])
    return DataLoader(train, batch_size, shuffle=True), DataLoader(val, batch_size)


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.fc1, self.fc2 = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.fc2(nn.functional.gelu(self.fc1(self.norm(x))))


class AverageMeter:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, value, n):
        self.sum += value * n
        self.count += n

    @property
    def avg(self):
        return self.sum / max(1, self.count)


def train_one_epoch(model, loader, optimizer, scaler, scheduler, args):
    losses = AverageMeter()
    model.train()
    start = time.perf_counter()
    for inputs, targets in loader:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device_type="cpu", dtype=torch.float16, enabled=args.use_amp):
            outputs = model(inputs)
            loss = nn.functional.cross_entropy(outputs.float(), targets)
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_norm)  # <- PRC001
        scaler.step(optimizer)
        scale = scaler.get_scale()
        scaler.update()
        if scaler.get_scale() >= scale:
            scheduler.step()
        losses.update(loss.item(), len(targets))
    return losses.avg, time.perf_counter() - start


def validate(model, loader):
    accuracy = AverageMeter()
    model.eval()
    with torch.no_grad():
        for inputs, targets in loader:
            accuracy.update((model(inputs).argmax(1) == targets).float().mean().item(), len(targets))
    return accuracy.avg


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--use-amp", type=bool, default=True)
    parser.add_argument("--max-norm", type=float, default=1.0)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()
    torch.manual_seed(0)
    train_loader, val_loader = make_loaders(args.batch_size)
    model = nn.Sequential(nn.Linear(24, 32), Residual(32), Residual(32), nn.LayerNorm(32), nn.Linear(32, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs * len(train_loader))
    scaler = torch.amp.GradScaler("cpu", enabled=args.use_amp, init_scale=4096.0)
    for epoch in range(args.epochs):
        loss, seconds = train_one_epoch(model, train_loader, optimizer, scaler, scheduler, args)
        print(f"epoch {epoch} loss {loss:.4f} acc {validate(model, val_loader):.4f}")


if __name__ == "__main__":
    main()
