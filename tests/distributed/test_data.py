"""Data that several processes share: ready batches, held-out sets, statistics, metrics."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from trueloop import Accuracy, Confusion, Shards, TrainConfig, Trainer
from trueloop.core.errors import InvalidConfig, InvalidData
from trueloop.training.distributed.processes import join_processes

EXACT = 1e-12


def dataset(samples=22):
    make = torch.Generator().manual_seed(4)
    return TensorDataset(torch.randn(samples, 5, generator=make).double(), torch.arange(samples) % 3)


def net():
    torch.manual_seed(1)
    return nn.Linear(5, 3).double()


class RecordingReporter:
    def __init__(self):
        self.metrics, self.tables = [], []

    def report(self, event):
        if type(event).__name__ == "Evaluated":
            self.metrics.append(dict(event.metrics))
            self.tables.append(dict(event.tables))

    def close(self):
        pass


class Share:
    """A metric that cannot be merged: every process has to see everything."""

    def __init__(self):
        self.seen = []

    def update(self, output, target):
        self.seen += target.tolist()

    def compute(self):
        return float(len(self.seen) * 100 + sum(self.seen))


def train(train_set, *, metrics=None, val=None, epochs=2, **arguments):
    model, reporter = net(), RecordingReporter()
    config = TrainConfig(epochs=epochs, effective_batch=8, micro_batch=3, device="cpu", workers=0, seed=9)
    Trainer(
        model=model, objective=nn.CrossEntropyLoss(), config=config, metrics=metrics or {}, reporters=[reporter]
    ).fit(train_set, val=dataset(10) if val is None else val, **arguments)
    return torch.cat([p.detach().flatten() for p in model.parameters()]), reporter.metrics, reporter.tables


def shuffled_loader():
    torch.manual_seed(17 + join_processes(torch.device("cpu")).rank)  # what every process shuffles with is not the same
    return DataLoader(dataset(), batch_size=2, shuffle=True)


def everything():
    """Train one run of each kind; return the results of this process."""
    counted = {"accuracy": Accuracy, "confusion": lambda: Confusion(3)}
    ready = [(dataset()[i : i + 3]) for i in range(0, 22, 3)]
    return {
        "ready": train(ready, accumulate=3),
        "loader": train(shuffled_loader(), accumulate=4),
        "shards": train(Shards(range(4), sharded, sizes=[5] * 4)),
        "merged": train(dataset(), metrics=counted),
        "whole": train(dataset(), metrics={"share": Share}),
        "ready val": train(dataset(), metrics=counted, val=[dataset(10)[i : i + 4] for i in range(0, 10, 4)]),
    }


def sharded(shard):
    data = dataset()
    return [data[index] for index in range(5 * shard, 5 * shard + 5)]


@pytest.mark.parametrize("processes", [2, 3])
def test_what_is_trained_on_and_measured_is_the_same(run_processes, processes):
    alone = everything()
    reported = run_processes(everything, processes=processes)
    for kind, (weights, metrics, tables) in alone.items():
        for rank, of in enumerate(reported):
            assert torch.equal(of[kind][0], reported[0][kind][0]), (kind, rank)
        assert float((reported[0][kind][0] - weights).norm() / weights.norm()) < EXACT, kind
        assert len(reported[0][kind][1]) == 2
        for here, there in zip(reported[0][kind][1], metrics, strict=True):
            assert here == pytest.approx(there, rel=1e-9), kind
        assert reported[0][kind][2] == tables


def samplers():
    """A DataLoader that deals by itself, and what cannot be shared."""
    rank = join_processes(torch.device("cpu")).rank
    data = dataset(24)
    dealt = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, 2, rank, shuffle=False))
    weights = train(dealt)[0]
    with pytest.raises(InvalidData, match="val data uses a DistributedSampler"):
        train(data, val=dealt)
    with pytest.raises(InvalidConfig, match="accumulate is 1, and 2 processes share each update"):
        train([data[:4]])
    with pytest.raises(InvalidConfig, match="effective_batch is 1, and 2 processes share it"):
        Trainer(model=net(), objective=nn.CrossEntropyLoss(), config=TrainConfig(effective_batch=1)).fit(data)
    return weights


def test_a_distributed_sampler_deals_by_itself(run_processes):
    one, other = run_processes(samplers, processes=2)
    data = dataset(24)
    order = [index for start in range(0, 24, 8) for index in range(start, start + 8)]
    alone = train([data[order[i : i + 8]] for i in range(0, 24, 8)])[0]
    assert torch.equal(one, other)
    assert float((one - alone).norm() / alone.norm()) < EXACT


def normalised():
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3)).double()
    drawn = []
    model[2].register_forward_hook(lambda _m, inputs, output: drawn.append((output == 0).sum().item()))
    config = TrainConfig(epochs=2, effective_batch=8, device="cpu", workers=0)
    Trainer(model=model, objective=nn.CrossEntropyLoss(), config=config).fit(dataset(24), val=dataset(10))
    mean = model[1].running_mean
    return mean.tolist(), model[1].num_batches_tracked.item(), torch.rand(2).tolist(), model[0].weight.tolist()


def test_statistics_are_the_first_process_s_and_random_numbers_each_one_s_own(run_processes):
    one, other = run_processes(normalised, processes=2)
    assert one[:2] == other[:2]
    assert one[1] == 6
    assert one[2] != other[2]
    assert one[3] == other[3]
