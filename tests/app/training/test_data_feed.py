"""Test data sources end to end: shards, streams and stateful loaders."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from trueloop import CheckpointConfig, OptimConfig, ScheduleConfig, Shards, TrainConfig, Trainer, evaluate
from trueloop.app.training.data_feed import DataFeed
from trueloop.core.errors import CheckpointError, InvalidConfig, InvalidData
from trueloop.runs import read_journal

pytestmark = pytest.mark.usefixtures("plots_disabled")

SIZES = [30, 7, 0, 41, 22]  # 100 samples: 9 windows of 12, the last one short
G = torch.Generator().manual_seed(0)
X = torch.randn(100, 5, generator=G)
Y = (X @ torch.randn(5, 3, generator=G)).argmax(1)
FIRST = [sum(SIZES[:shard]) for shard in range(len(SIZES))]


def rows(shard: int):
    """Samples with a random augmentation."""
    for i in range(FIRST[shard], FIRST[shard] + SIZES[shard]):
        yield X[i] + 0.01 * torch.randn(5), Y[i]


def shards(*, known: bool = True) -> Shards:
    return Shards(range(5), rows, sizes=SIZES if known else None, interleave=2, buffer=9)


def trainer(folder=None, **settings) -> Trainer:
    torch.manual_seed(3)
    config = {
        "epochs": 3, "effective_batch": 12, "micro_batch": 5, "workers": 0, "optim": OptimConfig(lr=0.02),
        "schedule": ScheduleConfig(name="constant"), "checkpoint": CheckpointConfig(every_updates=1, final="last"),
    } | settings  # fmt: skip
    model = nn.Sequential(nn.Linear(5, 32), nn.Dropout(0.2), nn.Linear(32, 3))
    return Trainer(model=model, objective=nn.CrossEntropyLoss(), config=TrainConfig(**config), run_dir=folder)


def weights(ours: Trainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in ours.model.parameters()])


class Killed(Exception):
    pass


def train_and_kill(ours: Trainer, data, at: int, **options) -> None:
    """Raise in forward pass number ``at``."""
    seen = 0

    def count(*_):
        nonlocal seen
        seen += 1
        if seen > at:
            raise Killed

    handle = ours.model.register_forward_pre_hook(count)
    with pytest.raises(Killed):
        ours.fit(data, **options)
    handle.remove()


@pytest.mark.parametrize("at", [4, 24, 25, 40])  # of 25 micro-batches per epoch
@pytest.mark.parametrize(("known", "workers", "then"), [(True, 0, 0), (False, 0, 0), (False, 2, 0), (False, 0, 2)])
def test_shards_killed_at_any_update_end_with_the_same_weights(tmp_path, at, known, workers, then):
    undisturbed = trainer()
    undisturbed.fit(shards(known=known))
    train_and_kill(trainer(tmp_path, workers=workers), shards(known=known), at)
    resumed = trainer(tmp_path, workers=then)
    result = resumed.fit(shards(known=known))
    assert result.resumed_from == at // 25 * 9 + at % 25 // 3
    assert result.update == 27
    assert torch.equal(weights(resumed), weights(undisturbed))


def test_shard_sizes_do_not_change_the_weights():
    known, unknown = trainer(), trainer()
    known.fit(shards())
    unknown.fit(shards(known=False))
    assert torch.equal(weights(known), weights(unknown))


def test_a_run_on_shards_records_its_data(tmp_path):
    ours = trainer(tmp_path)
    result = ours.fit(shards(), val=shards(), test=shards(known=False))
    facts = read_journal(tmp_path / "journal.jsonl").facts
    assert facts["sizes"] == {"train": 100, "val": 100}
    assert facts["plan"]["updates_per_epoch"] == 9
    assert {word.rpartition(":")[0] for word in facts["data"].values()} == {"5 shards:sha256"}
    measured = evaluate(ours.model, shards(), nn.CrossEntropyLoss()).metrics["loss"]
    assert result.metrics["test/loss"] == pytest.approx(measured, rel=1e-6)


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        (Shards(range(5), rows, sizes=SIZES, interleave=2, buffer=8), "data.batches.buffer: was 9, is 8"),
        (Shards(range(5), rows, sizes=SIZES, interleave=3, buffer=9), "data.batches.interleave: was 2, is 3"),
        (Shards(range(4), rows, sizes=SIZES[:4], interleave=2, buffer=9), "data.train: was 5 shards"),
    ],
)
def test_other_shards_are_another_run(tmp_path, changed, name):
    trainer(tmp_path).fit(shards())
    with pytest.raises(CheckpointError, match=name):
        trainer(tmp_path, epochs=4).fit(changed)


def test_the_code_of_a_reader_belongs_to_the_run():
    feed = DataFeed(TrainConfig(), collate=None, pin_memory=False)
    feed.training_source(shards())
    feed.evaluation_batches("test", Shards([1], iter))
    assert feed.shard_readers == [rows, 0]


class Stream(IterableDataset):
    def __iter__(self):
        yield from zip(X, Y, strict=True)


def test_a_stream_of_samples_must_be_wrapped_in_shards():
    result = trainer().fit(Shards([Stream()], iter))
    assert result.update == 27
    with pytest.raises(InvalidData, match=r"(?s)yields samples, not batches.*trueloop.Shards\(\[dataset\], iter\)"):
        trainer().fit(Stream())


def test_shards_are_shuffled_or_sequential():
    drawn = []

    def watch(model, batch):
        drawn.append(batch[1])
        return model(batch[0]).mean()

    ours = trainer(epochs=1)
    ours.objective = watch
    ours.fit(shards(), sampler="sequential")
    assert torch.equal(torch.cat(drawn), Y)
    with pytest.raises(InvalidConfig, match="cannot be used with shards"):
        trainer().fit(shards(), sampler="weighted", labels=Y)
    with pytest.raises(InvalidConfig, match="accumulate is 2"):
        trainer().fit(shards(), accumulate=2)


class Walk(IterableDataset):
    """Batches from a random walk over the data, which only its state can restore."""

    def __init__(self, extra=None):
        self.at, self.state, self.resumes, self.extra = 0, 1, False, extra

    def __iter__(self):
        self.at = self.at if self.resumes else 0
        self.resumes = False
        while self.at < 14:
            self.at, self.state = self.at + 1, (self.state * 48271) % (2**31 - 1)
            rows = torch.randperm(100, generator=torch.Generator().manual_seed(self.state))[:6]
            yield X[rows], Y[rows]

    def state_dict(self):
        return {"at": self.at, "walk": {"state": self.state, "extra": self.extra}}

    def load_state_dict(self, state):
        self.at, self.state, self.resumes = state["at"], state["walk"]["state"], True


class Batches:
    """The same, but not a PyTorch dataset."""

    def __init__(self):
        self.walk = Walk()
        self.state_dict, self.load_state_dict = self.walk.state_dict, self.walk.load_state_dict

    def __iter__(self):
        return iter(self.walk)


@pytest.mark.parametrize("at", [1, 7, 13, 14, 20])
@pytest.mark.parametrize("wrapped", [False, True])
def test_data_that_knows_its_position_is_resumed_there(tmp_path, at, wrapped):
    def make():
        return DataLoader(Walk(), batch_size=None) if wrapped else Batches()

    undisturbed = trainer()
    undisturbed.fit(make(), accumulate=3)
    train_and_kill(trainer(tmp_path), make(), at, accumulate=3)
    resumed = trainer(tmp_path)
    result = resumed.fit(make(), accumulate=3)
    assert (result.resumed_from > 0) == (at >= 3)
    assert torch.equal(weights(resumed), weights(undisturbed))


def test_an_invalid_data_state_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"order\.position\.state\.walk\.extra is a set"):
        trainer(tmp_path).fit(DataLoader(Walk({1}), batch_size=None), accumulate=3)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata's own
def test_the_torchdata_loader_is_resumed(tmp_path):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def make():
        return stateful.StatefulDataLoader(TensorDataset(X, Y), batch_size=6, shuffle=True)

    undisturbed = trainer()
    undisturbed.fit(make(), accumulate=2)
    train_and_kill(trainer(tmp_path), make(), 24, accumulate=2)
    resumed = trainer(tmp_path)
    assert resumed.fit(make(), accumulate=2).resumed_from == 12
    assert torch.equal(weights(resumed), weights(undisturbed))


READY = [(X[:10], Y[:10])]


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (READY, {"sampler": "weighted", "labels": Y}, "sampler and labels cannot be used: a list yields ready batches"),
        (READY, {"collate": list}, "collate cannot be used"),
        (DataLoader(TensorDataset(X, Y)), {"sampler": "sequential"}, "sampler cannot be used: a DataLoader"),
        (TensorDataset(X, Y), {"sampler": "wieghted"}, "sampler is 'wieghted'"),
        (TensorDataset(X, Y), {"labels": Y}, "labels were passed, but the sampler 'random' does not use them"),
    ],
)
def test_options_that_would_be_ignored_are_refused(data, options, message):
    with pytest.raises(InvalidConfig, match=message):
        trainer().fit(data, **options)


def test_without_seeding_the_generators_are_not_changed():
    def final(seeding: bool, of_program: int) -> torch.Tensor:
        torch.manual_seed(of_program)
        model = nn.Sequential(nn.Linear(X.shape[1], 8), nn.Dropout(0.5), nn.Linear(8, 1))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(0.1)
        config = TrainConfig(epochs=1, effective_batch=8, seeding=seeding)
        Trainer(model=model, objective=lambda m, batch: m(batch[0]).square().mean(), config=config).fit(
            TensorDataset(X, Y)
        )
        return model[0].weight.detach().clone()

    assert torch.equal(final(True, 1), final(True, 2))
    assert torch.equal(final(False, 1), final(False, 1))
    assert not torch.equal(final(False, 1), final(False, 2))


def test_a_one_pass_iterator_is_refused_at_the_start():
    once = iter(READY)
    with pytest.raises(InvalidData, match="(?s)The train data is a list_iterator.*the function that creates"):
        trainer().fit(once)
    with pytest.raises(InvalidData, match="The val data is a list_iterator"):
        trainer().fit(READY, val=once)
    trainer().fit(READY, test=once)
