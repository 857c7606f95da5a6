"""In all three formats, answers equal those of the original model at any batch size; train mode is rejected."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from trueloop.core.errors import InvalidConfig, InvalidModel, MissingExtra
from trueloop.export.artifact import open_artifact
from trueloop.export.exported_model import Model
from trueloop.export.io_description import SizeRange
from trueloop.export.parity import compare_outputs
from trueloop.export.write import ExportSpec, export

EVERY = [(what, kind) for what in ("table", "text") for kind in ("pt2", "onnx", "torchscript")]


@pytest.mark.parametrize(("what", "kind"), EVERY)
def test_the_answers_are_those_of_the_live_model(tiny_artifacts, what, kind):
    exported, live = tiny_artifacts.model(what, kind), tiny_artifacts.live(what)
    rng = np.random.default_rng(0)
    sizes = (1, 2, 7)
    for size in sizes:
        shape = (size, 3) if what == "table" else (size, 6)
        array = rng.normal(size=shape).astype("f4") if what == "table" else rng.integers(0, 256, shape)
        with torch.no_grad():
            expected = live(torch.from_numpy(array))
        found = torch.stack([outputs[0] for outputs in exported.run([(each,) for each in array])])
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("what", "kind"), EVERY)
def test_sizes_that_may_differ_are_described(tiny_artifacts, what, kind):
    (array,) = open_artifact(tiny_artifacts.folder(what, kind)).description.inputs
    batch, *rest = array.shape
    assert batch == SizeRange(lowest=1)
    if what == "table":
        assert rest == [SizeRange(lowest=3, highest=3)]
    else:  # sizes proven by torch.export; for a trace, those of the samples
        assert rest == [SizeRange(lowest=1, highest=6)]
    assert (array.lowest, array.highest) == ((0, 255) if what == "text" else (None, None))


def test_one_sample_at_a_time_where_that_is_asked_for(tiny_artifacts, tmp_path):
    done = export(tiny_artifacts.live(), tiny_artifacts.spec(dynamic_batch=False), tmp_path, {})
    assert done.parity.batches == (1,) * 5
    model = Model.open(tmp_path)
    assert model.description.largest_batch == 1
    samples = [(row,) for row in np.eye(3, dtype="f4")]
    together = torch.stack([outputs[0] for outputs in model.run(samples)])
    torch.testing.assert_close(together, tiny_artifacts.live()(torch.eye(3)).detach())


@pytest.mark.parametrize("kind", ["pt2", "onnx", "torchscript"])
def test_a_model_in_train_mode_is_refused(tiny_artifacts, tmp_path, kind):
    model = tiny_artifacts.live()
    model[3].train()
    with pytest.raises(InvalidModel, match=r"^3 is in train mode"):
        export(model, tiny_artifacts.spec(kind=kind), tmp_path, {})
    assert not list(tmp_path.iterdir())
    assert model[3].training
    assert not model[1].training, "modes are as they were"


class Forgetful(nn.Module):
    """Returns other outputs in every call."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        return self.layer(x) + torch.rand(())


def test_other_answers_are_refused_and_not_described(tiny_artifacts, tmp_path):
    with pytest.raises(InvalidModel, match="differ: largest difference"):
        export(Forgetful().eval(), tiny_artifacts.spec(), tmp_path, {})
    assert not (tmp_path / "manifest.json").exists()


def test_sizes_that_are_computed_are_proven_too(tmp_path):
    class Halved(nn.Module):
        def forward(self, x):
            return nn.functional.interpolate(x[:, None], scale_factor=1.5)[:, 0, ::2]

    batches = [(torch.randn(size, length),) for size, length in ((3, 8), (2, 10), (1, 12))]
    done = export(Halved().eval(), ExportSpec(kind="pt2", names=("x",), batches=batches), tmp_path, {})
    assert done.parity.passed
    (sample,) = Model.open(tmp_path).run([(np.ones(20, dtype="f4"),)])
    assert sample[0].shape == (15,)


class Pooled(nn.Module):
    """The mean of the vectors that a mask selects."""

    def __init__(self):
        super().__init__()
        self.vectors = nn.Embedding(10, 4)

    def forward(self, ids, mask):
        return (self.vectors(ids) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


@pytest.mark.parametrize("kind", ["pt2", "torchscript"])
def test_several_inputs_whose_sizes_go_together(tmp_path, kind):
    batches = [(torch.randint(10, (size, length)), torch.ones(size, length)) for size, length in ((3, 5), (2, 2))]
    done = export(Pooled().eval(), ExportSpec(kind=kind, names=("ids", "mask"), batches=batches), tmp_path, {})
    ids, mask = done.description.inputs
    assert (ids.name, mask.name, ids.dtype, mask.dtype) == ("ids", "mask", "int64", "float32")
    highest = None if kind == "pt2" else 5
    assert [array.shape[1] for array in (ids, mask)] == [SizeRange(lowest=1, highest=highest)] * 2


class Baked(nn.Module):
    """A model whose trace contains the number of rows of the example."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x) + torch.zeros(int(x.shape[0]), 2) if len(x) > 1 else self.layer(x) * 2


def test_a_branch_that_the_trace_lost_shows(tiny_artifacts, tmp_path):
    with pytest.raises(InvalidModel, match="fails on inputs|exported model differ"):
        export(Baked().eval(), tiny_artifacts.spec(kind="torchscript"), tmp_path, {})


def test_what_torch_cannot_export_is_told_in_its_words(tiny_artifacts, tmp_path):
    class Deciding(nn.Module):
        def forward(self, x):
            return x * 2 if x.sum().item() > 0 else x

    with pytest.raises(InvalidModel, match="torch cannot export Deciding to pt2"):
        export(Deciding().eval(), tiny_artifacts.spec(), tmp_path, {})


def test_samples_are_needed(tiny_artifacts, tmp_path):
    with pytest.raises(InvalidConfig, match="0 batches"):
        export(tiny_artifacts.live(), tiny_artifacts.spec(batches=[]), tmp_path, {})


def test_a_missing_runtime_is_named(tiny_artifacts, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"trueloop\[export\]"):
        export(tiny_artifacts.live(), tiny_artifacts.spec(kind="onnx"), tmp_path, {})


def test_the_manifest_tells_parity_and_nothing_of_this_machine(tiny_artifacts):
    folder = tiny_artifacts.folder("table", "pt2")
    output = json.loads((folder / "manifest.json").read_text())
    assert output["metadata"]["parity"]["samples"] == 5
    assert output["metadata"]["parity"]["difference"] <= output["metadata"]["parity"]["allowed"]
    assert output["metadata"]["run"]["id"] == "0" * 32
    assert set(output["files"]) == {"model.pt2"}
    assert b"tiny_artifacts.py" not in (folder / "model.pt2").read_bytes(), "lines of the source are left out"


def test_parity_counts_what_differs():
    def give(*values):
        return lambda inputs: [torch.tensor(values)]

    batch = [(torch.zeros(2, 1),)]
    nan = float("nan")
    assert compare_outputs(give(1.0, 200.0), give(1.0, 200.001), batch).passed, "relative to the largest"
    assert not compare_outputs(give(1.0, 2.0), give(1.0, 2.001), batch).passed
    assert compare_outputs(give(1.0, 2.0), give(1.0, 2.001), batch, tolerance=1e-3).passed
    assert compare_outputs(give(nan, 1.0), give(nan, 1.0), batch).passed
    assert compare_outputs(give(nan, 1.0), give(1.0, 1.0), batch).difference == float("inf")
    shorter = compare_outputs(give(1.0, 1.0), give(1.0), batch)
    assert shorter.difference == float("inf")
    assert "for float32[2, 1] it returns float32[1], but the original returns float32[2]" in str(shorter)
    assert compare_outputs(give(float("inf")), give(float("inf")), batch).passed
    assert not compare_outputs(give(1), give(1.0), batch).passed, "another type"
