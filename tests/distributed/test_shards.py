"""A sharded run is saved, resumed on any number of processes, averaged and shipped like any other."""

import errno
import math
import os
import shutil
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from trueloop import TrainConfig, Trainer, load_weights
from trueloop.app.runs.rollback import roll_back
from trueloop.core.errors import CheckpointError, InvalidModel, RunFolderError
from trueloop.training.checkpoint import shard_files, sharded
from trueloop.training.checkpoint.checkpoints import CheckpointFolder
from trueloop.training.checkpoint.state_tree import ShardReference
from trueloop.training.config import CheckpointConfig, MonitorConfig, OptimConfig, ParallelConfig, ScheduleConfig

EXACT = 1e-12
EPOCHS = 3
CONFIG = TrainConfig(
    effective_batch=6, seed=5, device="cpu", workers=0, parallel=ParallelConfig(engine="fsdp"), ema=0.9,
    optim=OptimConfig(lr=3e-2), schedule=ScheduleConfig(horizon_epochs=EPOCHS, floor=0.1),
    checkpoint=CheckpointConfig(keep_last=9, final="last"),
)  # fmt: skip


class Samples(torch.utils.data.Dataset):
    def __init__(self, samples=20, trap=None):
        self.x = torch.randn(samples, 5, generator=torch.Generator().manual_seed(1)).double()
        if trap is not None:
            self.x[3] = trap

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.x[index].argmax()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(5, 5), nn.LayerNorm(5)

    def forward(self, x):
        return x + self.norm(self.linear(x)).tanh()


class Nothing(nn.Module):
    """Adds nothing, but for a number below -1000, which has no logarithm."""

    def forward(self, x):
        return 0 * (x + 1000).log()


class Tied(nn.Module):
    """Tied weights, buffers that change, and first dimensions (5 and 2) that 2 and 3 processes do not divide."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.nothing = Nothing()
        self.stem = nn.Linear(5, 5, bias=False)
        self.blocks = nn.ModuleList([Block() for _ in range(2)])
        self.gate = nn.Parameter(torch.ones(2))
        self.head = nn.Linear(5, 5, bias=False)
        self.head.weight = self.stem.weight
        self.register_buffer("calls", torch.zeros(()))
        self.double()

    def forward(self, x):
        self.calls += self.training
        h = self.stem(x) * self.gate.prod() + self.nothing(x)
        for block in self.blocks:
            h = block(h)
        return self.head(h)


class Scalar(nn.Linear):
    def __init__(self):
        super().__init__(5, 5)
        self.scale = nn.Parameter(torch.ones(()))


class RecordingReporter:
    def __init__(self):
        self.notes = []

    def report(self, event):
        if type(event).__name__ == "Notice":
            self.notes.append((event.kind, event.message))

    def close(self):
        pass


def train(run_dir, epochs=EPOCHS, data=None, model=None, **settings):
    """Train in a folder until ``epochs``; return what was noted."""
    reporter, model = RecordingReporter(), model or Tied()
    config = replace(CONFIG, epochs=epochs, **settings)
    trainer = Trainer(
        model=model, objective=nn.CrossEntropyLoss(), config=config, run_dir=run_dir, reporters=[reporter]
    )
    trainer.fit(data or Samples(), val=None if data else Samples(5))
    return reporter.notes


def shipped(run_dir):
    weights = load_weights(run_dir / "final" / "model.safetensors")
    assert weights["head.weight"].data_ptr() == weights["stem.weight"].data_ptr()
    return weights


def far(a, b):
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).norm() / (b[name].norm() or 1.0)) for name in a)


def pair(root):
    """Live through everything that two processes can; return what each run noted."""
    first = int(os.environ["RANK"]) == 0
    mirrored = CheckpointConfig(keep_last=9, final="last", mirror=f"file://{root}/mirror")
    results = {"whole": train(root / "whole", checkpoint=mirrored)}
    results["mirrored"] = train(root / "mirrored", checkpoint=mirrored)
    results["cut"] = train(root / "cut", epochs=1)
    if first:
        shutil.copytree(root / "cut", root / "three")
        shutil.copytree(root / "cut", root / "to-ddp")
        shutil.copytree(root / "whole", root / "torn")
        newest = root / "torn" / "checkpoints" / "update-000000012" / "shard-00002-model-00001-of-00001.safetensors"
        newest.write_bytes(newest.read_bytes()[:-8] + bytes(8))
    results["resumed"] = train(root / "cut")
    results["torn"] = train(root / "torn")
    results["to ddp"] = train(root / "to-ddp", parallel=ParallelConfig())
    results["from alone"] = train(root / "from-alone")
    results["best"] = train(
        root / "best", monitor=MonitorConfig(mode="max"), checkpoint=CheckpointConfig(keep_last=1, final="best")
    )
    rarely = CheckpointConfig(every_epochs=99, final="last")  # evaluates without saving, which would reshard the model
    results["rarely"] = train(root / "rarely", monitor=MonitorConfig(mode="max"), checkpoint=rarely, recompute=True)
    for name, trap in ("log", -2000.0), ("batch", math.nan):
        results[name] = train(None, epochs=1, data=Samples(trap=trap))
    results["fp16"] = train(root / "fp16", epochs=1, **float16())
    with pytest.raises(InvalidModel) as caught:
        train(None, model=Scalar())
    results["scalar"] = str(caught.value)
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Dynamo looks at what it should not, and torch tells it
        patch.setattr(
            torch, "compile", partial(torch.compile, backend="eager")
        )  # traced in the same way, without compile time
        results["compile"] = train(root / "compile", epochs=1, compile=True)
    results["disk"] = _refused(root / "whole", first, shard_files._HashingFile, "write", _full)
    results["blind"] = _refused(root / "whole", first, Path, "is_dir", lambda *_: False)
    return results


def float16():
    data = Samples()
    data.x = data.x.float()
    return {"model": Tied().float(), "data": data, "precision": "fp16"}


def _refused(run_dir, first, kind, method, wrong):
    """Let a method fail on the second process; return the error."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises((CheckpointError, RunFolderError)) as caught:
        if not first:
            patch.setattr(kind, method, wrong)
        train(run_dir, epochs=EPOCHS + 1)
    return type(caught.value).__name__, str(caught.value)


def _full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def kinds(notes):
    return [kind for kind, _ in notes]


@pytest.fixture(scope="module")
def lived(run_processes, tmp_path_factory):
    """Return the folder with all runs, and what each of two processes has to tell."""
    root = tmp_path_factory.mktemp("shards")
    train(root / "alone")
    train(root / "from-alone", epochs=1)
    train(root / "fp16-alone", epochs=1, **float16())
    shutil.copytree(root / "from-alone", root / "one-epoch")
    return root, run_processes(pair, root, processes=2)


def test_two_processes_end_where_one_does_and_a_resumed_run_to_the_bit(lived):
    root, (results, _) = lived
    whole, alone = shipped(root / "whole"), shipped(root / "alone")
    assert results["whole"] == results["cut"] == []
    assert far(whole, alone) < EXACT  # averages, tied weights and buffers included
    assert kinds(results["resumed"]) == ["resumed"]
    assert far(shipped(root / "cut"), whole) == 0
    assert far(shipped(root / "rarely"), whole) < EXACT
    assert far(shipped(root / "best"), shipped(root / "one-epoch")) < EXACT  # where more is better, the first was best
    assert far(shipped(root / "best"), whole) > 1e-3


def test_float16_and_compiled_models_are_sharded_and_what_cannot_be_is_refused(lived):
    root, (results, _) = lived
    assert far(shipped(root / "fp16"), shipped(root / "fp16-alone")) < 1e-2
    assert far(shipped(root / "fp16"), shipped(root / "one-epoch")) > 1e-7  # it was float16
    assert far(shipped(root / "compile"), shipped(root / "one-epoch")) < EXACT
    assert "Scalar cannot be sharded" in results["scalar"]


def test_every_process_has_written_its_part_and_one_reads_them_all(lived):
    folders = [CheckpointFolder(lived[0] / run / "checkpoints", writing=False) for run in ("whole", "alone")]
    (checkpoint, state), (_, expected) = (folder.load_latest() for folder in folders)
    files = sorted(path.name[:11] for path in checkpoint.path.glob("shard-*"))
    assert files == ["shard-00001", "shard-00002"]
    assert isinstance(state["optimizer"]["state"][0]["exp_avg"], ShardReference)
    state = sharded.load_full_state(checkpoint, state)
    for part in (lambda tree: tree["model"], lambda tree: tree["average"], lambda tree: tree["optimizer"]["state"][1]):
        assert far(part(state), part(expected)) < EXACT
    assert state["model"]["head.weight"] is state["model"]["stem.weight"]


def test_shards_travel_with_their_checkpoint(lived):
    root, (results, _) = lived
    assert kinds(results["mirrored"]) == ["resumed"]  # what lies in the mirror was brought home by the first process
    assert far(shipped(root / "mirrored"), shipped(root / "whole")) == 0
    copied = roll_back(root / "whole", "last", root / "rolled-back").checkpoint
    (_, state), (_, expected) = (
        CheckpointFolder(path, writing=False).load_latest()
        for path in (copied.path.parent, root / "whole" / "checkpoints")
    )
    assert far(sharded.load_full_state(copied, state)["model"], sharded.load_full_state(copied, expected)["model"]) == 0


def test_a_damaged_shard_is_named_and_all_take_the_checkpoint_before(lived):
    root, (results, _) = lived
    assert kinds(results["torn"]) == ["checkpoint_passed_over", "resumed"]
    assert "shard-00002-model-00001-of-00001.safetensors does not match" in results["torn"][0][1]
    assert "after update 8" in results["torn"][1][1]
    assert far(shipped(root / "torn"), shipped(root / "whole")) == 0


def test_a_run_goes_on_as_two_as_three_and_as_one(lived, run_processes):
    root, (results, _) = lived
    alone = shipped(root / "alone")
    assert kinds(results["from alone"]) == ["resumed", "resumed_inexact"]  # the same run, nothing had to be allowed
    assert "on.processes: was 1, is 2" in results["from alone"][1][1]
    assert far(shipped(root / "from-alone"), alone) < EXACT
    assert "parallel.engine: was fsdp, is ddp" in results["to ddp"][1][1]
    assert far(shipped(root / "to-ddp"), alone) < EXACT

    three = run_processes(train, root / "three", 2, processes=3)[0]
    assert "on.processes: was 2, is 3" in three[1][1]
    last = train(root / "three")
    assert kinds(last) == ["resumed", "resumed_inexact"]
    assert far(shipped(root / "three"), alone) < EXACT


def test_what_is_not_finite_is_located_by_all_together(lived):
    results = lived[1][0]
    assert "aten.log in module 'nothing'" in results["log"][0][1]
    assert "in process" in results["log"][0][1]
    assert "the batch itself" in results["batch"][0][1]
    assert "dataset indices 3" in results["batch"][0][1]


def test_what_one_process_cannot_write_stops_all_and_nothing_is_lost(lived):
    root, both = lived
    for results in both:
        assert results["disk"][0] == "CheckpointError"
        assert "No space left" in results["disk"][1]
        assert results["blind"][0] == "RunFolderError"
        assert "is not visible to process 1" in results["blind"][1]
    folder = CheckpointFolder(root / "whole" / "checkpoints", writing=False)
    assert [checkpoint.update for checkpoint in folder.checkpoints()] == [4, 8, 12]
    assert folder.leftovers() == []
