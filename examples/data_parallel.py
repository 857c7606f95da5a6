"""Train one network in several processes, each with its own part of every epoch.

torchrun --nproc-per-node 2 data_parallel.py --epochs 8
"""

import argparse
import gc
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset


def join():
    """Take the place that torchrun gives; alone where it has not started this process."""
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return dist.get_rank(), dist.get_world_size()


def train_epoch(model, loader, optimizer, epoch):
    model.train()
    loader.sampler.set_epoch(epoch)
    total = torch.zeros(2)
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        total += torch.tensor([loss.item() * len(labels), len(labels)])
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    total = torch.zeros(3)
    for inputs, labels in loader:
        logits = model(inputs)
        loss = F.cross_entropy(logits, labels, reduction="sum").item()
        total += torch.tensor([loss, (logits.argmax(1) == labels).sum().item(), len(labels)])
    dist.all_reduce(total)
    return (total[0] / total[2]).item(), (total[1] / total[2]).item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.05)
    args = parser.parse_args()
    rank, processes = join()
    torch.manual_seed(0)

    digits = load_digits()
    dataset = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))
    order = torch.randperm(len(dataset)).tolist()
    train_set, val_set = Subset(dataset, order[:1200]), Subset(dataset, order[1200:][rank::processes])
    sampler = DistributedSampler(train_set, shuffle=True, seed=0)
    train_loader = DataLoader(train_set, batch_size=args.batch_size, sampler=sampler)
    val_loader = DataLoader(val_set, batch_size=256)

    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    for epoch in range(1, args.epochs + 1):
        train_loss = train_epoch(model, train_loader, optimizer, epoch)
        val_loss, accuracy = evaluate(model, val_loader)
        if rank == 0:
            print(f"epoch {epoch:2}  train loss {train_loss:.4f}  val loss {val_loss:.4f}  accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
    gc.collect()  # what hangs on the group, such as DDP, has to go before it does
    dist.barrier()
    dist.destroy_process_group()
