"""Two processes train in ways that look like diverging ranks: a GAN, uneven inputs, another task on each rank."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset


def gan(rank):
    torch.manual_seed(rank)
    g = DDP(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)))
    d = DDP(nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)), broadcast_buffers=True)
    opt_g, opt_d = torch.optim.Adam(g.parameters(), 1e-3), torch.optim.Adam(d.parameters(), 1e-3)
    bce = nn.BCEWithLogitsLoss()
    ema = [p.detach().clone() for p in g.parameters()]
    for _ in range(20):
        real, fake = torch.randn(32, 2) * 0.1 + rank, g(torch.randn(32, 4))
        opt_d.zero_grad()
        loss_d = bce(d(torch.cat([real, fake.detach()])), torch.cat([torch.ones(32, 1), torch.zeros(32, 1)]))
        loss_d.backward()
        opt_d.step()
        opt_g.zero_grad()
        loss_g = bce(d.module(fake), torch.ones(32, 1))
        loss_g.backward()
        opt_g.step()
        torch._foreach_lerp_(ema, list(g.parameters()), 0.1)
    return loss_d.item(), loss_g.item()


def uneven(rank):
    torch.manual_seed(0)
    x = torch.randn(96 + 40 * rank, 5)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, shuffle=True)
    model = DDP(nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(3):
        with model.join():
            for a, b in loader:
                opt.zero_grad()
                nn.functional.mse_loss(model(a), b).backward()
                opt.step()
    return [round(p.sum().item(), 6) for p in model.parameters()]


def task_of_its_own(rank):
    groups = [dist.new_group([r]) for r in range(dist.get_world_size())]
    torch.manual_seed(rank + 10)
    model = DDP(nn.Linear(3, 1), process_group=groups[rank])
    opt = torch.optim.SGD(model.parameters(), lr=0.1 / (rank + 1))
    for _ in range(12):
        x = torch.randn(16, 3)
        opt.zero_grad()
        nn.functional.mse_loss(model(x), x[:, :1] * rank).backward()
        opt.step()
    return model.module.bias.item()


dist.init_process_group("gloo")
rank = dist.get_rank()
print(gan(rank))
print(uneven(rank))
print(task_of_its_own(rank))
dist.destroy_process_group()
