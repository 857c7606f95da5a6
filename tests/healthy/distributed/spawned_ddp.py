"""The DDP tutorial: the processes are spawned by the script itself, with a model that finds its unused parameters."""

import gc
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1, self.relu, self.net2 = nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 5)

    def forward(self, x):
        return self.net2(self.relu(self.net1(x)))


def demo_basic(rank, world_size, port, results):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    torch.manual_seed(rank)
    ddp_model = DDP(ToyModel())
    optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.001)
    for _ in range(5):
        optimizer.zero_grad()
        outputs = ddp_model(torch.randn(20, 10))
        nn.MSELoss()(outputs, torch.randn(20, 5)).backward()
        optimizer.step()
    results[rank] = sum(p.double().sum().item() for p in ddp_model.parameters())
    del ddp_model
    gc.collect()  # see digits_ddp.py
    dist.destroy_process_group()


if __name__ == "__main__":
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    with mp.Manager() as manager:
        results = manager.dict()
        mp.spawn(demo_basic, args=(2, port, results), nprocs=2)
        assert results[0] == results[1]
        print(results[0])
