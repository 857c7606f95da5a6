"""torchrun's elastic example: rank 0 writes a snapshot after each epoch, all ranks read it when they start again."""

import os
import tempfile

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Trainer:
    def __init__(self, data, held_out, path):
        self.rank, self.path, self.begun = dist.get_rank(), path, 0
        net = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=4)
        if os.path.exists(path):
            self.resume(net)
        self.model, self.held_out = DDP(net), held_out
        self.loader = DataLoader(data, batch_size=64, sampler=DistributedSampler(data))

    def resume(self, net):
        snapshot = torch.load(self.path, map_location="cpu", weights_only=True)
        net.load_state_dict(snapshot["model"])
        self.optimizer.load_state_dict(snapshot["optimizer"])
        self.scheduler.load_state_dict(snapshot["scheduler"])
        self.begun = snapshot["epoch"]

    def snapshot(self, epoch):
        if self.rank == 0:
            parts = {"optimizer": self.optimizer, "scheduler": self.scheduler}
            state = {
                "model": self.model.module.state_dict(),
                **{name: part.state_dict() for name, part in parts.items()},
            }
            torch.save({**state, "epoch": epoch + 1}, self.path + ".part")
            os.replace(self.path + ".part", self.path)
        dist.barrier()

    def train(self, until):
        for epoch in range(self.begun, until):
            self.loader.sampler.set_epoch(epoch)
            self.model.train()
            for x, y in self.loader:
                self.optimizer.zero_grad(set_to_none=True)
                loss = nn.functional.cross_entropy(self.model(x), y)
                loss.backward()
                self.optimizer.step()
            self.scheduler.step()
            self.snapshot(epoch)
        return self.accuracy()

    @torch.inference_mode()
    def accuracy(self):
        self.model.eval()
        x, y = self.held_out
        return (self.model.module(x).argmax(1) == y).float().mean().item()


dist.init_process_group("gloo")
digits = load_digits()
x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
dist.broadcast_object_list(folder)
torch.manual_seed(dist.get_rank())
for until in (2, 4):  # as if it was started again in between
    trainer = Trainer(TensorDataset(x[:1536], y[:1536]), (x[1536:], y[1536:]), os.path.join(folder[0], "snapshot.pt"))
    print(until, trainer.begun, trainer.train(until))
dist.destroy_process_group()
