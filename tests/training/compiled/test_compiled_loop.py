"""Compiled runs: which windows are compiled, what is reported, and that nothing else changes."""

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
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # raised by torch while Inductor is imported
    pytest.mark.compiles_updates,
]

G = torch.Generator().manual_seed(0)
X, Y = torch.randn(46, 6, generator=G).double(), torch.randint(0, 3, (46,), generator=G)
compile_by_torch = torch.compile


@pytest.fixture
def traced(monkeypatch):
    """Compile as in a run, but without Inductor, which takes seconds; return the shapes of the compiled calls."""
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


def fit(
    build, windowed, config: TrainConfig, *reporters, objective=None, checkpoints=None, effective=8, model=None
) -> Fit:
    seed_everything(config.seed)
    parts = build(model or network(), objective or nn.CrossEntropyLoss(), config, updates_per_epoch=6)
    run = Fit(
        parts, config, windowed(X, Y, effective=effective, micro=config.micro_batch), held_out={}, metrics={},
        checkpoints=checkpoints, reporters=reporters,
    )  # fmt: skip
    run.resume()
    return run


def weights(run: Fit) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in run.assembly.model.parameters()])


def notes(reporter) -> list[tuple[str, str]]:
    return [(note.kind, note.message) for note in reporter.of(Notice)]


def test_a_compiled_run_equals_the_eager_one_and_compiles_once(build, windowed, reporter, traced):
    eager, compiled_run = (fit(build, windowed, TrainConfig(epochs=3, compile=on), reporter) for on in (False, True))
    for run in (eager, compiled_run):
        assert run.run(name="run", facts={}).update == 18
    torch.testing.assert_close(weights(compiled_run), weights(eager), rtol=1e-12, atol=1e-12)
    assert traced == [[(8, 6)]]  # the last window of an epoch has 6 examples and is not compiled
    ((kind, message),) = notes(reporter)
    assert kind == "compiled"
    assert "[8, 6] float64" in message
    rows = [row for event in reporter.of(UpdatesDone) for row in event.rows]
    torch.testing.assert_close(
        [[row.loss, row.grad_norm, row.lr] for row in rows[18:]],
        [[row.loss, row.grad_norm, row.lr] for row in rows[:18]], rtol=1e-12, atol=1e-12,
    )  # fmt: skip


def test_many_windows_of_other_shapes_share_one_program(build, windowed, traced, monkeypatch):
    monkeypatch.setattr(whole_module, "MIN_OTHER_SHAPES", 3)
    parts = build(network(), nn.CrossEntropyLoss(), TrainConfig(compile=True, effective_batch=8))
    update = 0
    for size in (8, 8, 5, 6, 7, 5, 6, 4, 8, 3, 2, 1 + 1):
        for _ in train_epoch(parts, windowed(X[:size], Y[:size], effective=8).epoch(0), update=update):
            update += 1
    assert not parts.compiled_step.disabled, parts.compiled_step.drain_notices()
    assert len(traced) == 2
    assert [results.kind for results in parts.compiled_step.drain_notices()] == ["compiled", "compiled"]


def test_a_resumed_run_compiles_the_same_windows_and_is_bitwise_equal(build, windowed, traced, tmp_path):
    config = TrainConfig(epochs=2, compile=True, checkpoint=CheckpointConfig(every_updates=5, keep_last=9))
    folder = CheckpointFolder(tmp_path / "a", keep_last=9)
    compiled_run = fit(build, windowed, config, checkpoints=folder, model=network(dropout=0.3))
    compiled_run.run(name="run", facts={})
    for saved in folder.checkpoints():
        if saved.update > 5:  # the next window is the short one of the epoch
            saved.path.rename(tmp_path / saved.path.name)
    again = fit(build, windowed, config, checkpoints=folder, model=network(dropout=0.3))
    assert again.position.update == 5
    again.run(name="run", facts={})
    assert torch.equal(weights(again), weights(compiled_run))


def reads(model, batch):
    output = model(batch[0])
    if output.sum().item() > 1e9:
        return output.sum() * 0
    return nn.functional.cross_entropy(output, batch[1])


def test_what_cannot_be_compiled_is_reported_and_trained_eagerly(build, windowed, reporter, traced):
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


def test_an_objective_that_reads_a_value_is_trained_eagerly(build, windowed, reporter, traced):
    eager, compiled_run = (
        fit(build, windowed, TrainConfig(epochs=1, compile=on), reporter, objective=reads) for on in (False, True)
    )
    for run in (eager, compiled_run):
        run.run(name="run", facts={})
    ((kind, message),) = notes(reporter)
    assert kind == "compiled_in_part"
    assert "value of a tensor" in message
    assert "test_compiled_loop.py:" in message
    assert "Only the model is compiled" in message
    torch.testing.assert_close(weights(compiled_run), weights(eager), rtol=1e-12, atol=1e-12)


def test_several_micro_batches_use_the_loop_with_compiled_gradients(build, windowed, reporter, traced):
    config = TrainConfig(epochs=1, compile=True, effective_batch=8, micro_batch=3)
    run = fit(build, windowed, config, reporter)
    run.run(name="run", facts={})
    assert traced == [[(3, 6)]]  # those of 2 are left over from windows of 8, and run uncompiled
    assert [message.partition(" is compiled")[0] for _, message in notes(reporter)] == ["The gradient of a micro-batch"]
    eager = fit(build, windowed, TrainConfig(epochs=1, effective_batch=8, micro_batch=3))
    eager.run(name="run", facts={})
    torch.testing.assert_close(weights(run), weights(eager), rtol=1e-12, atol=1e-12)


class SkipsParameter(nn.Sequential):
    def forward(self, x):
        return self[0](x)


def test_a_parameter_without_a_gradient_disables_compiling(build, windowed, traced):
    model = SkipsParameter(nn.Linear(6, 3), nn.Linear(2, 2)).double()
    parts = build(model, nn.CrossEntropyLoss(), TrainConfig(compile=True, effective_batch=8))
    for _ in train_epoch(parts, windowed(X, Y, effective=8).epoch(0), update=0):
        pass
    ((_, message),) = parts.compiled_step.drain_notices()
    assert "gradient" in message


def test_a_batch_that_does_not_fit_is_explained(build, windowed, traced):
    parts = build(network(), nn.CrossEntropyLoss(), TrainConfig(compile=True, effective_batch=8))
    for update in range(2):
        list(train_epoch(parts, windowed(X[:8], Y[:8], effective=8).epoch(0), update=update))
    with pytest.raises(InvalidData, match="Label 7"):
        list(train_epoch(parts, windowed(X[:8], Y[:8] + 7, effective=8).epoch(0), update=2))


@pytest.mark.parametrize("compiler", [None, "no-such-compiler"])
def test_inductor_compiles_the_update_or_a_missing_compiler_is_reported(build, windowed, compiler):
    from torch._functorch import config as functorch
    from torch._inductor import config as inductor

    missing = ExitStack()
    if compiler:
        missing.enter_context(inductor.patch({"cpp.cxx": (None, compiler), "fx_graph_cache": False}))
        missing.enter_context(functorch.patch(enable_autograd_cache=False))
    with missing:
        (kind, message), weights_by_mode = trained_by_inductor(build, windowed)
    assert kind == ("compiled_in_part" if compiler else "compiled")
    assert ("C++ compiler" in message) == bool(compiler)
    torch.testing.assert_close(weights_by_mode[0], weights_by_mode[1], rtol=1e-12, atol=1e-12)


def trained_by_inductor(build, windowed):
    """Train without compiling and with it; return the notice, and the weights of both."""
    weights_by_mode, last = [], None
    for on in (False, True):
        torch.manual_seed(0)
        last = fit(build, windowed, TrainConfig(compile=on, optim=OptimConfig(lr=0.05)), model=network(dropout=0.3))
        list(train_epoch(last.assembly, windowed(X[:40], Y[:40], effective=8).epoch(0), update=0))
        weights_by_mode.append(weights(last))
    (results,) = last.assembly.compiled_step.drain_notices()
    return results, weights_by_mode
