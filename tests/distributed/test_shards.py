"""A sharded run is saved, resumed on any number of processes, averaged and shipped like any other."""

import shutil
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trueloop import TrainConfig, Trainer, load_weights
from trueloop.engines.train.checkpoint import CheckpointFolder
from trueloop.engines.train.config import CheckpointConfig, OptimConfig
from trueloop.engines.train.shards import SHARD, complete

EXACT = 1e-12
BASE = TrainConfig(
    epochs=2, effective_batch=6, seed=5, device="cpu", workers=0, parallel="fsdp", ema=0.9,
    optim=OptimConfig(lr=3e-2), checkpoint=CheckpointConfig(keep_last=9, final="last"),
)  # fmt: skip


class Samples(torch.utils.data.Dataset):
    def __init__(self, samples=20):
        self.x = torch.randint(0, 7, (samples, 5), generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.x[index].roll(1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(5, 5), nn.BatchNorm1d(5)

    def forward(self, x):
        return x + self.norm(self.linear(x).transpose(1, 2)).transpose(1, 2)


class Tied(nn.Module):
    """Tied weights, buffers that change, and first dimensions (7, 5, 2) that 2 and 3 processes do not divide."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.embed = nn.Embedding(7, 5)
        self.blocks = nn.ModuleList([Block() for _ in range(2)])
        self.gate = nn.Parameter(torch.ones(2))
        self.head = nn.Linear(5, 7, bias=False)
        self.head.weight = self.embed.weight
        self.double()

    def forward(self, x):
        h = self.embed(x) * self.gate.prod()
        for block in self.blocks:
            h = block(h)
        return self.head(h).transpose(1, 2).clone()


class Heard:
    def __init__(self):
        self.notes = []

    def report(self, event):
        if type(event).__name__ == "Noted":
            self.notes.append((event.kind, event.message))

    def close(self):
        pass


def train(run_dir, config=BASE, epochs=2):
    """Train until ``epochs``; return what was shipped to this process's model, and the notes."""
    model, heard = Tied(), Heard()
    trainer = Trainer(
        model=model, objective=nn.CrossEntropyLoss(), config=replace(config, epochs=epochs), run_dir=run_dir,
        reporters=[heard],
    )  # fmt: skip
    result = trainer.fit(Samples(), val=Samples(5))
    return result.metrics, heard.notes


def test_play(together, tmp_path):
    alone = train(tmp_path / "alone")
    told = together(train, tmp_path / "two", processes=2)
    print(alone, told)
    import subprocess
    print(subprocess.run(["find", str(tmp_path), "-name", "*.safetensors"], capture_output=True, text=True).stdout)
    a, b = load_weights(tmp_path / "alone/final/model.safetensors"), load_weights(tmp_path / "two/final/model.safetensors")
    assert a.keys() == b.keys()
    for k in a:
        torch.testing.assert_close(a[k], b[k], rtol=1e-9, atol=1e-10)
    assert 0
