"""The chunked loss within a model's own forward, where its parameters are replicated or sharded."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from trueloop import TrainConfig, Trainer, autograd
from trueloop.training.config import OptimConfig, ParallelConfig

WORDS = 13
CONFIG = TrainConfig(epochs=2, effective_batch=6, device="cpu", workers=0, optim=OptimConfig(lr=3e-2))


class Net(nn.Module):
    """Its forward returns sum and count of the loss."""

    def __init__(self, *, chunked):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(WORDS, 4)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2)])
        self.head = nn.Linear(4, WORDS)
        self.chunked = chunked
        self.double()

    def forward(self, x, y):
        hidden = self.embed(x)
        for block in self.blocks:
            hidden = block(hidden)
        if self.chunked:
            term = autograd.chunked_cross_entropy(hidden, self.head, y, chunk=5)
            return term.sum, term.count
        return F.cross_entropy(self.head(hidden).flatten(0, 1), y.flatten(), reduction="sum"), (y != -100).sum()


def trained(parallel, *, chunked):
    make = torch.Generator().manual_seed(1)
    x, y = (torch.randint(0, WORDS, (15, 7), generator=make) for _ in range(2))
    y[:, 3:][x[:, 3:] > 8] = -100
    model = Net(chunked=chunked)
    trainer = Trainer(
        model=model,
        objective=lambda net, batch: net(*batch),
        config=replace(CONFIG, parallel=ParallelConfig(engine=parallel)),
    )
    trainer.fit(torch.utils.data.TensorDataset(x, y))
    whole = [p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters()]
    return torch.cat([p.detach().flatten() for p in whole]).numpy()


@pytest.mark.parametrize("parallel", ["ddp", pytest.param("fsdp", marks=pytest.mark.shards_on_cpu)])
def test_two_processes_train_as_one_does_with_torchs_own(run_processes, parallel):
    alone = trained(parallel, chunked=False)
    for weights in run_processes(lambda: trained(parallel, chunked=True), processes=2):
        assert weights == pytest.approx(alone, rel=1e-12, abs=1e-13)
