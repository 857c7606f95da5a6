"""However many processes share a run, it is the same run: every weight after every update, to rounding."""

import math

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from trueloop import Loss, TrainConfig, Trainer
from trueloop.training.config import OptimConfig, ParallelConfig, ScheduleConfig

EXACT = 1e-12
SAMPLES, EFFECTIVE, EPOCHS = 23, 8, 3  # windows of 8, 8 and 7: the last one is short, and 7 does not divide by 2 or 3


class Tokens(torch.utils.data.Dataset):
    """Sequences of different lengths, padded with -100 in the target."""

    def __init__(self, samples=SAMPLES):
        make = torch.Generator().manual_seed(1)
        self.x = torch.randint(0, 11, (samples, 9), generator=make)
        self.y = torch.randint(0, 11, (samples, 9), generator=make)
        lengths = torch.randint(1, 10, (samples,), generator=make)
        self.y[torch.arange(9) >= lengths[:, None]] = -100

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


class Net(nn.Module):
    """A small language model; one part of it is never used, and one is a buffer that training changes."""

    def __init__(self, seed=3):
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(11, 6)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(2)])
        self.head = nn.Linear(6, 11)
        self.spare = nn.Linear(6, 6)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.double()

    def forward(self, x):
        self.calls += 1
        h = self.embed(x)
        for block in self.blocks:
            h = block(h)
        return self.head(h).transpose(1, 2).clone()  # fully_shard warns of views


def two_terms(model, batch):
    """Token cross-entropy, and a penalty that counts sequences: other counts, in other proportions."""
    x, y = batch
    output = model(x)
    return [
        Loss(sum=F.cross_entropy(output, y, reduction="sum"), count=(y != -100).sum(), name="tokens"),
        Loss(sum=output.square().mean((1, 2)).sum(), count=float(len(x)), weight=0.1, name="penalty"),
    ]


def counts(batch):
    return [int((batch[1] != -100).sum()), len(batch[0])]


class Weights:
    """Reporter that records every update and the weights after it."""

    def __init__(self, model):
        self.model, self.weights, self.rows, self.evaluated = model, [], [], []

    def report(self, event):
        self.rows += [(*row[:5], row.examples) for row in getattr(event, "rows", ())]
        if type(event).__name__ == "Evaluated":
            self.evaluated.append(dict(event.metrics))

    def close(self):
        pass


def train(case, micro=None, parallel="ddp", optimizer="adamw"):
    """Train as many processes as there are; return the weights after every epoch, and what was reported."""
    model = Net()
    reporter = Weights(model)
    config = TrainConfig(
        epochs=EPOCHS, effective_batch=EFFECTIVE, micro_batch=micro, seed=5, device="cpu", workers=0, clip=0.5,
        optim=OptimConfig(name=optimizer, lr=3e-2), schedule=ScheduleConfig(warmup=0.2),
        parallel=ParallelConfig(engine=parallel),
    )  # fmt: skip
    objective = {"mean": nn.CrossEntropyLoss(), "terms": two_terms}[case]
    trainer = Trainer(
        model=model,
        objective=objective,
        config=config,
        reporters=[reporter],
        counts=counts if case == "terms" else None,
    )
    trainer.fit(Tokens(), val=Tokens(7))
    return flat(model), reporter.rows, reporter.evaluated


def flat(model):
    whole = (value.full_tensor() if isinstance(value, DTensor) else value for value in model.parameters())
    return torch.cat([value.detach().flatten().double() for value in whole])


def far(a, b):
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("case", ["mean", "terms"])
@pytest.mark.parametrize(
    ("processes", "micro", "parallel"),
    [
        (2, None, "ddp"),
        (2, 1, "ddp"),
        (3, 2, "ddp"),
        pytest.param(2, 1, "fsdp", marks=pytest.mark.shards_on_cpu),
        pytest.param(3, 2, "fsdp", marks=pytest.mark.shards_on_cpu),
    ],
)
def test_the_run_is_the_same_on_any_number_of_processes(run_processes, case, processes, micro, parallel):
    weights, rows, evaluated = train(case)
    results = run_processes(train, case, micro, parallel, processes=processes)
    for own, _, _ in results:
        assert torch.equal(own, results[0][0])
        assert far(own, weights) < EXACT
    assert len(results[0][1]) == len(rows) == 9
    for here, alone in zip(results[0][1], rows, strict=True):
        assert here == pytest.approx(alone, rel=1e-9)  # loss and norm of all processes, examples of all
    for here, alone in zip(results[0][2], evaluated, strict=True):
        assert here == pytest.approx(alone, rel=1e-9)
    assert results[1][1] == []
    assert not math.isnan(rows[0][2])


OPTIMIZERS = ("adam", "sgd", "rmsprop", "adagrad")


def sharded_optimizers():
    return [train("mean", None, "fsdp", name)[0] for name in OPTIMIZERS]


@pytest.mark.shards_on_cpu
def test_every_optimizer_steps_sharded_weights(run_processes):
    results, _ = run_processes(sharded_optimizers, processes=2)
    for name, weights in zip(OPTIMIZERS, results, strict=True):
        assert far(weights, train("mean", optimizer=name)[0]) < EXACT, name
