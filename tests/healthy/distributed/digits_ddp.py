"""DistributedDataParallel on gloo: a distributed sampler with set_epoch, accumulation under no_sync, evaluation on rank 0."""

import contextlib
import gc
import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def setup():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    return dist.get_rank(), dist.get_world_size()


def train_epoch(model, loader, optimizer, accumulate):
    model.train()
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        sync = (i + 1) % accumulate == 0
        with contextlib.nullcontext() if sync else model.no_sync():
            loss = nn.functional.cross_entropy(model(x), y) / accumulate
            loss.backward()
        if sync:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return loss.item() * accumulate


@torch.no_grad()
def accuracy(model, x, y):
    model.eval()
    return (model(x).argmax(1) == y).float().mean().item()


def main():
    rank, world = setup()
    d = load_digits()
    x, y = torch.tensor(d.data, dtype=torch.float32) / 16, torch.tensor(d.target)
    train = TensorDataset(x[:1280], y[:1280])
    sampler = DistributedSampler(train, shuffle=True, seed=3)
    loader = DataLoader(train, batch_size=32, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        loss = train_epoch(model, loader, optimizer, accumulate=2)
        total = torch.tensor(loss)
        dist.all_reduce(total)
        if rank == 0:
            print(epoch, total.item() / world, accuracy(model.module, x[1280:], y[1280:]), flush=True)
        dist.barrier()
    print(rank, os.environ["WORLD_SIZE"], sum(p.double().sum().item() for p in model.parameters()))
    del model
    gc.collect()  # gloo's threads need Python to let a sum go: torch 2.13 aborts where one is held until Python ends
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
