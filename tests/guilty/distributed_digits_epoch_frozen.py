"""A data-parallel classifier in the style of the ImageNet example; without torchrun it runs in one process."""

import argparse
import gc
import os
import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Meter:
    def __init__(self, name):
        self.name, self.sum, self.count = name, 0.0, 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n

    def __str__(self):
        return f"{self.name} {self.sum / max(1, self.count):.3f}"


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--workers", type=int, default=0)
    return parser.parse_args()


def setup():
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return dist.get_rank(), dist.get_world_size()


def make_loaders(args):
    digits = load_digits()
    x, y = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16, torch.tensor(digits.target)
    train_set, val_set = TensorDataset(x[:1400], y[:1400]), TensorDataset(x[1400:], y[1400:])
    train_sampler = DistributedSampler(train_set, shuffle=True, drop_last=True)
    val_sampler = DistributedSampler(val_set, shuffle=False)
    train = DataLoader(train_set, args.batch_size, sampler=train_sampler, num_workers=args.workers, drop_last=True)
    val = DataLoader(val_set, args.batch_size, sampler=val_sampler, num_workers=args.workers)
    return train, val


def train_one_epoch(loader, model, criterion, optimizer, epoch):
    model.train()
    losses, began = Meter("loss"), time.time()
    for images, target in loader:  # <- DST003
        loss = criterion(model(images), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.update(loss.item(), len(target))
    assert time.time() >= began
    return losses


@torch.no_grad()
def validate(loader, model):
    model.eval()
    right = torch.zeros(2)
    for images, target in loader:
        right += torch.tensor([(model(images).argmax(1) == target).sum().item(), len(target)])
    dist.all_reduce(right)
    return (right[0] / right[1]).item()


def main(args):
    rank, _ = setup()
    train_loader, val_loader = make_loaders(args)
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3)
    for epoch in range(args.epochs):
        losses = train_one_epoch(train_loader, model, nn.CrossEntropyLoss(), optimizer, epoch)
        accuracy = validate(val_loader, model)
        scheduler.step()
        if rank == 0:
            print(epoch, losses, f"accuracy {accuracy:.3f}")
    del model
    gc.collect()  # what hangs on the group, such as DDP, has to go before it does
    dist.destroy_process_group()


if __name__ == "__main__":
    main(parse())
