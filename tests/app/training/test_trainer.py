"""Test the Trainer end to end: data in, a run folder and trained weights out."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import safetensors.torch
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import trueloop
from trueloop import (
    Accuracy,
    CheckpointConfig,
    Confusion,
    MonitorConfig,
    OptimConfig,
    ScheduleConfig,
    TrainConfig,
    Trainer,
    evaluate,
)
from trueloop.app.training.run_folder import RunFolder
from trueloop.core.errors import CheckpointError, InvalidConfig, InvalidData, InvalidModel, RunFolderError
from trueloop.runs import read_journal
from trueloop.training.checkpoint.checkpoints import CheckpointFolder
from trueloop.training.checkpoint.run_identity import saved_identity

pytestmark = pytest.mark.usefixtures("plots_disabled")

G = torch.Generator().manual_seed(0)
X = torch.randn(300, 5, generator=G)
Y = (X @ torch.randn(5, 3, generator=G)).argmax(1)
TRAIN, VAL, TEST = (
    TensorDataset(X[:200], Y[:200]),
    TensorDataset(X[200:250], Y[200:250]),
    TensorDataset(X[250:], Y[250:]),
)
METRICS = {"accuracy": Accuracy, "confusion": lambda: Confusion(3)}
CONFIG = TrainConfig(epochs=6, effective_batch=20, micro_batch=7, optim=OptimConfig(lr=0.02), workers=0)


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 3))


def trainer(**settings) -> Trainer:
    return Trainer(
        **{"model": network(), "objective": nn.CrossEntropyLoss(), "config": CONFIG, "metrics": METRICS} | settings
    )


@pytest.mark.draws
def test_it_learns_and_writes_all_outputs(tmp_path):
    ours = trainer(run_dir=tmp_path / "run", facts={"class_names": ["a", "b", "c"]})
    result = ours.fit(TRAIN, val=VAL, test=TEST)
    assert result.reason == "finished"
    assert (result.update, result.epochs) == (60, 6)
    assert result.metrics["val/accuracy"] > 0.8
    assert result.best_checkpoint.is_dir()

    weights = safetensors.torch.load_file(tmp_path / "run" / "final" / "model.safetensors")
    assert all(torch.equal(weights[name], value) for name, value in ours.model.state_dict().items())
    again = evaluate(ours.model, TEST, nn.CrossEntropyLoss(), metrics=METRICS)
    assert again.metrics["accuracy"] == result.metrics["test/accuracy"]
    assert again.metrics["loss"] == pytest.approx(result.metrics["test/loss"], rel=1e-6)

    history = read_journal(tmp_path / "run" / "journal.jsonl")
    assert len(history.updates) == 60
    assert history.facts["sizes"] == {"train": 200, "val": 50, "test": 50}
    assert history.facts["plan"]["updates_per_epoch"] == 10
    assert history.facts["class_names"] == ["a", "b", "c"]
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["optim"]["lr"] == 0.02
    assert (tmp_path / "run" / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "run" / "report.html").read_text().count("<svg") >= 4


def test_the_micro_batch_does_not_change_the_weights():
    results = []
    for micro in (20, 7, 1):
        ours = trainer(model=network().double(), config=TrainConfig(epochs=2, effective_batch=20, micro_batch=micro))
        ours.fit(TensorDataset(X[:110].double(), Y[:110]))
        results.append(torch.cat([p.detach().flatten() for p in ours.model.parameters()]))
    for other in results[1:]:
        assert float((other - results[0]).norm() / results[0].norm()) < 1e-12


def test_two_runs_are_bitwise_equal_and_the_seed_matters():
    def weights(seed: int, workers: int = 0):
        ours = trainer(
            model=nn.Sequential(nn.Linear(5, 32), nn.Dropout(0.5), nn.Linear(32, 3)).apply(
                lambda m: m.weight.data.fill_(0.1) if isinstance(m, nn.Linear) else None
            ),
            config=TrainConfig(epochs=1, effective_batch=20, seed=seed, workers=workers),
        )
        for layer in (ours.model[0], ours.model[2]):
            nn.init.zeros_(layer.bias)
        ours.fit(TRAIN)
        return torch.cat([p.detach().flatten() for p in ours.model.parameters()])

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))
    assert torch.equal(weights(1), weights(1, workers=2))


@pytest.mark.draws
def test_a_second_call_resumes_and_fresh_starts_over(tmp_path):
    first = trainer(run_dir=tmp_path).fit(TRAIN, val=VAL)
    longer = TrainConfig(epochs=7, effective_batch=20, micro_batch=7, optim=OptimConfig(lr=0.02), workers=0)
    second = trainer(run_dir=tmp_path, config=longer).fit(TRAIN, val=VAL)
    assert (first.resumed_from, second.resumed_from, second.update) == (0, 60, 70)
    assert len(read_journal(tmp_path / "journal.jsonl").updates) == 70
    (tmp_path / "mine.txt").write_text("not the run's own")
    third = trainer(run_dir=tmp_path, fresh=True).fit(TRAIN, val=VAL)
    assert (third.resumed_from, third.update) == (0, 60)
    assert (tmp_path / "mine.txt").exists()
    assert len(read_journal(tmp_path / "journal.jsonl").updates) == 60


OTHER = TensorDataset(X[:200] + 1, Y[:200])
LONGER = TensorDataset(X[:250], Y[:250])


@pytest.mark.parametrize(
    ("settings", "call", "expected"),
    [
        ({"config": TrainConfig(epochs=6, effective_batch=40)}, {}, "effective_batch: was 20, is 40"),
        ({"model": nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 3))}, {}, "model: was "),
        ({"objective": nn.CrossEntropyLoss(label_smoothing=0.1)}, {}, "objective: was CrossEntropyLoss("),
        ({"optimizer": lambda ps: torch.optim.SGD(ps, lr=0.1)}, {}, "optimizer: was absent, is SGD"),
        ({"identity": {"dropout": 0.5}}, {}, "dropout: was absent, is 0.5"),
        ({}, {"train": OTHER}, "data.train: was 200:sha256:"),
        ({}, {"train": LONGER}, "is 250:sha256:"),
        ({}, {"val": TEST}, "data.val: was 50:sha256:"),
        ({}, {"sampler": "sequential"}, "data.sampler: was random, is sequential"),
        ({}, {"sampler": "weighted", "labels": Y[:200]}, "data.labels: was absent"),
        ({}, {"train": DataLoader(TRAIN, batch_size=20)}, "data.batches.updates_per_epoch: was absent, is 10"),
    ],
)
def test_a_run_folder_of_another_run_is_refused(tmp_path, settings, call, expected):
    data = {"train": TRAIN, "val": VAL}
    start = TrainConfig(epochs=1, effective_batch=20, micro_batch=7, optim=OptimConfig(lr=0.02), workers=0)
    trainer(run_dir=tmp_path, config=start).fit(**data)
    journal = (tmp_path / "journal.jsonl").read_bytes()
    config = (tmp_path / "config.json").read_bytes()
    with pytest.raises(CheckpointError) as refused:
        trainer(run_dir=tmp_path, **settings).fit(**data | call)
    assert expected in refused.value.what
    assert (tmp_path / "journal.jsonl").read_bytes() == journal
    assert (tmp_path / "config.json").read_bytes() == config


def test_an_allowed_change_is_recorded(tmp_path):
    trainer(run_dir=tmp_path, config=TrainConfig(epochs=1, effective_batch=20, workers=0)).fit(TRAIN, val=VAL)
    changed = TrainConfig(epochs=2, effective_batch=40, workers=0, optim=OptimConfig(lr=0.5))
    result = trainer(run_dir=tmp_path, config=changed, allow_change=True).fit(OTHER, val=VAL)
    assert (result.resumed_from, result.update) == (10, 15)
    (note,) = [note for note in read_journal(tmp_path / "journal.jsonl").notes if note.kind == "resumed_changed"]
    assert {line.partition(":")[0] for line in note.details["changed"]} == {
        "effective_batch", "optim.lr", "data.train"
    }  # fmt: skip
    again = trainer(run_dir=tmp_path, config=changed).fit(OTHER, val=VAL)  # the changed run is now the recorded one
    assert again.resumed_from == 15


def test_user_code_is_part_of_the_identity(tmp_path):
    trainer(run_dir=tmp_path, config=TrainConfig(epochs=1, effective_batch=20)).fit(OTHER, collate=a_function_of_mine)
    (checkpoint,) = CheckpointFolder(tmp_path / "checkpoints").checkpoints()
    assert "code.test_trainer.py" in saved_identity(checkpoint)


def test_a_folder_can_be_chosen_by_the_identity(tmp_path):
    identities = []

    def choose(identity):
        identities.append(identity)
        return tmp_path / "chosen"

    result = trainer(run_dir=choose, config=TrainConfig(epochs=1, effective_batch=20)).fit(TRAIN)
    assert result.run_dir == tmp_path / "chosen"
    assert (result.run_dir / "final" / "model.safetensors").exists()
    assert identities[0]["effective_batch"] == 20


def a_function_of_mine(samples):
    return torch.utils.data.default_collate(samples)


@pytest.mark.parametrize("kind", ["loader", "list", "generator function"])
def test_ready_batches_are_used_unchanged(kind):
    batches = [(X[start : start + 7], Y[start : start + 7]) for start in range(0, 50, 7)]
    data = {
        "loader": DataLoader(TensorDataset(X[:50], Y[:50]), batch_size=7),
        "list": batches,
        "generator function": lambda: iter(batches),
    }[kind]
    ours = trainer(config=TrainConfig(epochs=2, schedule=ScheduleConfig(name="constant")))
    result = ours.fit(data, accumulate=3, val=[(X[200:], Y[200:])])
    assert result.update == 6  # 8 batches: 3 + 3 + 2


def test_a_dataset_and_the_same_batches_train_alike():
    config = TrainConfig(epochs=2, effective_batch=21, micro_batch=7)
    dataset = TensorDataset(X[:200].double(), Y[:200])
    cut, given = trainer(model=network().double(), config=config), trainer(model=network().double(), config=config)
    cut.fit(dataset, sampler="sequential")
    given.fit(DataLoader(dataset, batch_size=7), accumulate=3)
    for ours, theirs in zip(cut.model.parameters(), given.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def test_the_weighted_sampler_draws_rare_classes_as_often():
    labels = torch.tensor([0] * 180 + [1] * 20)
    identities = []

    def watch(model, batch):
        identities.append(batch[1])
        return model(batch[0]).mean()

    trainer(objective=watch, metrics={}).fit(TensorDataset(X[:200], labels), sampler="weighted", labels=labels)
    share = float(torch.cat(identities).double().mean())
    assert abs(share - 0.5) < 4 * (0.25 / 1200) ** 0.5  # four standard errors of a fair draw


def test_early_stopping_ends_with_the_best_weights(tmp_path):
    config = TrainConfig(
        epochs=60, effective_batch=20, optim=OptimConfig(lr=0.5), workers=0, clip=None,
        monitor=MonitorConfig(metric="val/accuracy", mode="max", patience=2), checkpoint=CheckpointConfig(keep_last=1),
    )  # fmt: skip
    ours = trainer(run_dir=tmp_path, config=config)
    result = ours.fit(TRAIN, val=VAL)
    assert result.reason == "early_stop"
    assert result.epochs < 60
    assert evaluate(ours.model, VAL, nn.CrossEntropyLoss(), metrics=METRICS).metrics["accuracy"] == result.best_value


def test_the_smoke_test_detects_a_loss_that_does_not_fall():
    identities = trainer().smoke(TRAIN)
    assert identities.loss_decrease > 0
    with pytest.raises(InvalidModel, match="does not fall"):
        trainer(config=TrainConfig(optim=OptimConfig(lr=1e-15))).smoke(TRAIN)


class Stream(IterableDataset):
    def __iter__(self):
        yield from zip(X, Y, strict=True)


@pytest.mark.parametrize(
    ("call", "error", "expected"),
    [
        (lambda: trainer().fit(TensorDataset(X[:0], Y[:0])), InvalidData, "0 samples"),
        (lambda: trainer().fit([]), InvalidData, ""),
        (lambda: trainer().fit(Stream()), InvalidData, "IterableDataset"),
        (lambda: trainer().fit(42), InvalidData, "int"),
        (lambda: trainer().fit(TRAIN, accumulate=2), InvalidConfig, "accumulate is 2"),
        (lambda: trainer().fit(TRAIN, sampler="weighted"), InvalidConfig, "weighted"),
        (lambda: trainer(config=TrainConfig(epochs=0)).fit(TRAIN), InvalidConfig, "epochs is 0"),
        (lambda: trainer(config=TrainConfig(device="cuda:9")).fit(TRAIN), InvalidConfig, "cuda:9"),
        (lambda: trainer(config=TrainConfig(freeze=("*",))).fit(TRAIN), InvalidModel, ""),
        (lambda: trainer(config=TrainConfig(freeze=("nothing.*",))).fit(TRAIN), InvalidConfig, "nothing"),
        (lambda: trainer().fit(TensorDataset(X, Y + 1)), InvalidData, "Label 3 is out of range"),
        (lambda: trainer().fit(TensorDataset(X[:, :2], Y)), InvalidData, "cannot take this batch"),
        (lambda: trainer(optimizer=lambda ps: torch.optim.SGD(ps[:1])).fit(TRAIN), InvalidModel, "0.bias"),
        (lambda: trainer(model=nn.Identity()).fit(TRAIN), InvalidModel, ""),
        (lambda: trainer(run_dir="/proc/nowhere").fit(TRAIN), RunFolderError, "/proc/nowhere"),
    ],
)  # fmt: skip
def test_invalid_arguments_are_named(call, error, expected):
    with pytest.raises(error) as caught:
        call()
    assert expected in str(caught.value)


def test_a_run_folder_that_is_a_file_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot be used"):
        trainer(run_dir=tmp_path / "file").fit(TRAIN)


def mirrored(tmp_path, url: str, **changes) -> TrainConfig:
    return replace(CONFIG, checkpoint=CheckpointConfig(mirror=url, every_updates=4), **changes)


def test_a_run_is_resumed_from_its_mirror(tmp_path):
    url = f"file://{tmp_path}/storage/run"
    whole = trainer(run_dir=tmp_path / "whole", config=replace(CONFIG, epochs=4))
    whole.fit(TRAIN, val=VAL)

    class Dies(Accuracy):
        def compute(self):
            if len(list((tmp_path / "lost").glob("checkpoints/update-*"))) >= 2:
                raise KeyboardInterrupt
            return super().compute()

    with pytest.raises(KeyboardInterrupt):
        trainer(run_dir=tmp_path / "lost", config=mirrored(tmp_path, url, epochs=4), metrics={"accuracy": Dies}).fit(
            TRAIN, val=VAL
        )
    shutil.rmtree(tmp_path / "lost")
    again = trainer(run_dir=tmp_path / "new", config=mirrored(tmp_path, url, epochs=4))
    result = again.fit(TRAIN, val=VAL)
    assert 0 < result.resumed_from < result.update == 40
    ours, theirs = again.model.state_dict(), whole.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    newest = sorted((tmp_path / "new" / "checkpoints").iterdir())
    assert [path.name for path in sorted((tmp_path / "storage/run/checkpoints").iterdir())] == [p.name for p in newest]


def test_starting_over_clears_the_mirror(tmp_path):
    config = mirrored(tmp_path, f"file://{tmp_path}/storage", epochs=1)
    assert trainer(run_dir=tmp_path / "a", config=config).fit(TRAIN).update == 10
    assert trainer(run_dir=tmp_path / "b", config=config).fit(TRAIN).resumed_from == 10
    assert trainer(run_dir=tmp_path / "c", config=config, fresh=True).fit(TRAIN).resumed_from == 0


def test_a_mirror_needs_a_run_folder(tmp_path):
    with pytest.raises(InvalidConfig, match="checkpoint.mirror is 'memory://x', but there is no run folder"):
        trainer(config=mirrored(tmp_path, "memory://x")).fit(TRAIN)


def test_a_folder_with_a_training_run_is_refused_and_unchanged(tmp_path):
    (tmp_path / "journal.jsonl").write_text("the other's")
    with RunFolder(tmp_path).lock():
        for fresh in (False, True):
            with pytest.raises(RunFolderError, match="Another process is training"):
                trainer(run_dir=tmp_path, fresh=fresh).fit(TRAIN)
    assert (tmp_path / "journal.jsonl").read_text() == "the other's"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "journal.jsonl"]


class Noisy(TensorDataset):
    """Draws from the global PyTorch generator whenever a sample is read."""

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + torch.randn(5) / 10, y


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("draws", [3, 9, 16, 21])
def test_a_shuffling_loader_resumes_in_the_same_order(tmp_path, draws, workers, own):
    """Also with a separate generator, and with random samples: bitwise the weights of an uninterrupted run."""

    class Stop(Exception):
        pass

    def weights(name: str, dies_at: int | None = None):
        left = [dies_at]

        def objective(model, batch):
            if left[0] is not None:
                left[0] -= 1
                if left[0] < 0:
                    raise Stop
            return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])

        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(5, 16), nn.Dropout(0.5), nn.Linear(16, 3))
        generator = torch.Generator().manual_seed(9) if own else None
        loader = DataLoader(Noisy(X[:64], Y[:64]), batch_size=8, shuffle=True, generator=generator, num_workers=workers)
        config = TrainConfig(epochs=3, checkpoint=CheckpointConfig(every_updates=1))
        run = Trainer(model=model, objective=objective, config=config, run_dir=tmp_path / name, metrics={})
        run.fit(loader)
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    with pytest.raises(Stop):
        weights("cut", dies_at=draws)
    assert torch.equal(weights("cut"), weights("whole"))


def test_findings_are_journaled_in_the_run_they_were_found_in(tmp_path):
    config = replace(CONFIG, epochs=1)
    with trueloop.watch() as report:
        wrong = nn.Sequential(network(), nn.Softmax(dim=1))
        trainer(model=wrong, run_dir=tmp_path / "wrong", config=config).fit(TRAIN, val=VAL)
        trainer(run_dir=tmp_path / "right", config=config).fit(TRAIN, val=VAL)
    [finding] = [each for each in report.findings if each.severity != "note"]
    [note] = [note for note in read_journal(tmp_path / "wrong").notes if note.kind == "finding"]
    assert (note.details["code"], note.details["message"]) == (finding.code, finding.message)
    assert note.message.startswith(f"{finding.code} {finding.title}: ")
    assert note.update <= 3, "it is known after the first updates"
    assert finding.code in (tmp_path / "wrong" / "report.html").read_text()
    assert not read_journal(tmp_path / "right").notes


def test_a_run_has_one_id_for_all_its_processes(tmp_path):
    def number() -> str:
        return read_journal(tmp_path / "run").facts["run_id"]

    trainer(run_dir=tmp_path / "run", config=replace(CONFIG, epochs=1)).fit(TRAIN, val=VAL)
    first = number()
    assert len(first) == 32
    trainer(run_dir=tmp_path / "run", config=replace(CONFIG, epochs=2)).fit(TRAIN, val=VAL)
    assert number() == first
    trainer(run_dir=tmp_path / "run", config=replace(CONFIG, epochs=1), fresh=True).fit(TRAIN, val=VAL)
    assert number() != first


def test_the_journal_records_machine_code_and_packages(tmp_path):
    trainer(run_dir=tmp_path / "run", config=replace(CONFIG, epochs=1)).fit(TRAIN, val=VAL)
    facts = read_journal(tmp_path / "run").facts
    assert facts["packages"]["torch"] == facts["versions"]["torch"]
    assert facts["environment"]["cores"] >= 1
    assert facts["environment"]["host"]
    assert facts["sizes"] == {"train": 200, "val": 50}
