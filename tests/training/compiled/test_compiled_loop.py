"""Compiled runs: which windows are compiled, what is said, and that nothing else changes."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import torch
from torch import nn

from trueloop.core.errors import InvalidData
from trueloop.core.protocols import Notice, UpdatesDone
from trueloop.training.checkpoint.checkpoints import CheckpointFolder
from trueloop.training.compiled import compiled_step as whole_module
from trueloop.training.compiled.compiled_loop import train_epoch
from trueloop.training.config import CheckpointConfig, OptimConfig, TrainConfig
from trueloop.training.fit import Fit
from trueloop.training.seeding import seed_everything

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's own, while Inductor is imported
    pytest.mark.compiles_updates,
]

G = torch.Generator().manual_seed(0)
X, Y = torch.randn(46, 6, generator=G).double(), torch.randint(0, 3, (46,), generator=G)
compile_by_torch = torch.compile


@pytest.fixture
def traced(monkeypatch):
    """Everything as in a run but Inductor, whose seconds are not needed to see what is compiled when."""
    shapes = []

    def backend(graph, inputs):
        from torch._dynamo.backends.debugging import aot_eager

        shapes.append(
            [tuple(each.shape) for each in inputs if isinstance(each, torch.Tensor) and each.shape[1:] == (6,)][:1]
        )
        return aot_eager(graph, inputs)

    def compiled(function, fullgraph=False, options=None):
        return compile_by_torch(function, fullgraph=fullgraph, backend=backend)

    monkeypatch.setattr(torch, "compile", compiled)
    return shapes


def network(dropout: float = 0.0) -> nn.Module:
    layers = (nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 3))
    return nn.Sequential(*layers).double()


def fit(build, cut, config: TrainConfig, *reporters, objective=None, checkpoints=None, effective=8, model=None) -> Fit:
    seed_everything(config.seed)
    parts = build(model or network(), objective or nn.CrossEntropyLoss(), config, updates_per_epoch=6)
    run = Fit(
        parts, config, cut(X, Y, effective=effective, micro=config.micro_batch), held_out={}, metrics={},
        checkpoints=checkpoints, reporters=reporters,
    )  # fmt: skip
    run.resume()
    return run


def weights(run: Fit) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in run.parts.model.parameters()])


def notes(reporter) -> list[tuple[str, str]]:
    return [(note.kind, note.message) for note in reporter.of(Notice)]


def test_a_compiled_run_equals_the_eager_one_and_compiles_once(build, cut, reporter, traced):
    plain, whole = (fit(build, cut, TrainConfig(epochs=3, compile=on), reporter) for on in (False, True))
    for run in (plain, whole):
        assert run.run(name="run", facts={}).update == 18
    torch.testing.assert_close(weights(whole), weights(plain), rtol=1e-12, atol=1e-12)
    assert traced == [[(8, 6)]]  # the last window of an epoch holds 6 examples, and is not worth it
    ((kind, message),) = notes(reporter)
    assert kind == "compiled"
    assert "[8, 6] float64" in message
    rows = [row for event in reporter.of(UpdatesDone) for row in event.rows]
    torch.testing.assert_close(
        [[row.loss, row.grad_norm, row.lr] for row in rows[18:]],
        [[row.loss, row.grad_norm, row.lr] for row in rows[:18]], rtol=1e-12, atol=1e-12,
    )  # fmt: skip


def test_many_windows_of_other_shapes_share_one_program(build, cut, traced, monkeypatch):
    monkeypatch.setattr(whole_module, "MIN_OTHER_SHAPES", 3)
    parts = build(network(), nn.CrossEntropyLoss(), TrainConfig(compile=True, effective_batch=8))
    update = 0
    for size in (8, 8, 5, 6, 7, 5, 6, 4, 8, 3, 2, 1 + 1):
        for _ in train_epoch(parts, cut(X[:size], Y[:size], effective=8).epoch(0), update=update):
            update += 1
    assert not parts.compiled_step.disabled, parts.compiled_step.drain_notices()
    assert len(traced) == 2
    assert [results.kind for results in parts.compiled_step.drain_notices()] == ["compiled", "compiled"]


def test_a_resumed_run_compiles_the_same_windows_and_ends_bit_for_bit_the_same(build, cut, traced, tmp_path):
    config = TrainConfig(epochs=2, compile=True, checkpoint=CheckpointConfig(every_updates=5, keep_last=9))
    folder = CheckpointFolder(tmp_path / "a", keep_last=9)
    whole = fit(build, cut, config, checkpoints=folder, model=network(dropout=0.3))
    whole.run(name="run", facts={})
    for saved in folder.checkpoints():
        if saved.update > 5:  # the next window is the short one
            saved.path.rename(tmp_path / saved.path.name)
    again = fit(build, cut, config, checkpoints=folder, model=network(dropout=0.3))
    assert again.position.update == 5
    again.run(name="run", facts={})
    assert torch.equal(weights(again), weights(whole))


def reads(model, batch):
    output = model(batch[0])
    if output.sum().item() > 1e9:
        return output.sum() * 0
    return nn.functional.cross_entropy(output, batch[1])


def test_what_cannot_be_compiled_is_said_and_trained_all_the_same(build, cut, reporter, traced):
    refused = {
        "NAdam": {"optimizer": torch.optim.NAdam},
        "fp16": {"config": TrainConfig(compile=True, precision="fp16")},
        "recompute": {"config": TrainConfig(compile=True, recompute=True)},
        "declared": {"counts": lambda batch: (len(batch[0]),)},
    }
    for word, case in refused.items():
        config = case.pop("config", TrainConfig(compile=True))
        blocks = (nn.Sequential(nn.Linear(6, 6)) for _ in range(2))
        model = nn.Sequential(*blocks, nn.Linear(6, 3)).double()
        parts = build(model, nn.CrossEntropyLoss(), config, **case)
        ((kind, message),) = parts.compiled_step.drain_notices()
        assert kind == "compiled_in_part"
        assert word in message


def test_an_objective_that_reads_a_value_is_trained_by_the_loop(build, cut, reporter, traced):
    plain, whole = (
        fit(build, cut, TrainConfig(epochs=1, compile=on), reporter, objective=reads) for on in (False, True)
    )
    for run in (plain, whole):
        run.run(name="run", facts={})
    ((kind, message),) = notes(reporter)
    assert kind == "compiled_in_part"
    assert "value of a tensor" in message
    assert "test_compiled_loop.py:" in message
    assert "Only the model is compiled" in message
    torch.testing.assert_close(weights(whole), weights(plain), rtol=1e-12, atol=1e-12)


def test_windows_of_several_micro_batches_are_the_loops_with_a_compiled_gradient(build, cut, reporter, traced):
    config = TrainConfig(epochs=1, compile=True, effective_batch=8, micro_batch=3)
    run = fit(build, cut, config, reporter)
    run.run(name="run", facts={})
    assert traced == [[(3, 6)]]  # those of 2 are left over from windows of 8, and run uncompiled
    assert [message.partition(" is compiled")[0] for _, message in notes(reporter)] == ["The gradient of a micro-batch"]
    plain = fit(build, cut, TrainConfig(epochs=1, effective_batch=8, micro_batch=3))
    plain.run(name="run", facts={})
    torch.testing.assert_close(weights(run), weights(plain), rtol=1e-12, atol=1e-12)


class Sparing(nn.Sequential):
    def forward(self, x):
        return self[0](x)


def test_a_parameter_without_a_gradient_keeps_the_update_from_being_compiled(build, cut, traced):
    model = Sparing(nn.Linear(6, 3), nn.Linear(2, 2)).double()
    parts = build(model, nn.CrossEntropyLoss(), TrainConfig(compile=True, effective_batch=8))
    for _ in train_epoch(parts, cut(X, Y, effective=8).epoch(0), update=0):
        pass
    ((_, message),) = parts.compiled_step.drain_notices()
    assert "gradient" in message


def test_a_batch_that_does_not_fit_is_explained(build, cut, traced):
    parts = build(network(), nn.CrossEntropyLoss(), TrainConfig(compile=True, effective_batch=8))
    for update in range(2):
        list(train_epoch(parts, cut(X[:8], Y[:8], effective=8).epoch(0), update=update))
    with pytest.raises(InvalidData, match="Label 7"):
        list(train_epoch(parts, cut(X[:8], Y[:8] + 7, effective=8).epoch(0), update=2))


@pytest.mark.parametrize("compiler", [None, "no-such-compiler"])
def test_inductor_compiles_it_or_a_missing_compiler_is_named(build, cut, compiler):
    from torch._functorch import config as functorch
    from torch._inductor import config as inductor

    missing = ExitStack()
    if compiler:
        missing.enter_context(inductor.patch({"cpp.cxx": (None, compiler), "fx_graph_cache": False}))
        missing.enter_context(functorch.patch(enable_autograd_cache=False))
    with missing:
        (kind, message), seen = trained_by_inductor(build, cut)
    assert kind == ("compiled_in_part" if compiler else "compiled")
    assert ("C++ compiler" in message) == bool(compiler)
    torch.testing.assert_close(seen[0], seen[1], rtol=1e-12, atol=1e-12)


def trained_by_inductor(build, cut):
    """Train without compiling and with it; return the notice, and the weights of both."""
    seen, last = [], None
    for on in (False, True):
        torch.manual_seed(0)
        last = fit(build, cut, TrainConfig(compile=on, optim=OptimConfig(lr=0.05)), model=network(dropout=0.3))
        list(train_epoch(last.parts, cut(X[:40], Y[:40], effective=8).epoch(0), update=0))
        seen.append(weights(last))
    (results,) = last.parts.compiled_step.drain_notices()
    return results, seen
