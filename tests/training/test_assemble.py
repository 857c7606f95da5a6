"""A run is assembled in the right order, and parts that do not fit together are refused."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from trueloop.core.errors import InvalidModel
from trueloop.training.config import OptimConfig, ParallelConfig, TrainConfig
from trueloop.training.loop import train_epoch
from trueloop.training.update import CpuUpdate


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Linear(4, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.backbone(x).relu())


def optimizer_parameters(parts) -> set[int]:
    return {id(p) for group in parts.optimizer.param_groups for p in group["params"]}


def test_the_optimizer_has_exactly_the_trainable_parameters(build):
    model = Net()
    parts = build(model, nn.CrossEntropyLoss(), TrainConfig(freeze=("backbone.*",)))
    assert optimizer_parameters(parts) == {id(p) for p in model.head.parameters()}
    assert not any(p.requires_grad for p in model.backbone.parameters())


def test_an_optimizer_of_other_parameters_is_refused(build):
    stranger = nn.Linear(2, 2)
    with pytest.raises(InvalidModel, match="backbone.weight"):
        build(
            Net(), nn.CrossEntropyLoss(), TrainConfig(),
            optimizer=lambda parameters: torch.optim.SGD([*parameters[2:], *stranger.parameters()]),
        )  # fmt: skip


def test_a_custom_optimizer_and_scheduler_are_used(build, windowed):
    parts = build(
        Net(), nn.CrossEntropyLoss(), TrainConfig(effective_batch=4),
        optimizer=lambda parameters: torch.optim.NAdam(parameters, lr=0.5),
        scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.1),
    )  # fmt: skip
    assert isinstance(parts.optimizer, torch.optim.NAdam)
    assert isinstance(parts.update, CpuUpdate)
    source = windowed(torch.randn(20, 4), torch.zeros(20, dtype=torch.int64), effective=4)
    rates = [result.rates[0] for result in train_epoch(parts, source.epoch(0, 0), update=0)]
    assert rates == pytest.approx([0.5, 0.5, 0.05, 0.05, 0.005])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised by torch while its compiler is imported
def test_a_compiled_model_trains_the_same_parameters(build, windowed, monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))  # Inductor takes 10 seconds
    x, y = torch.randn(12, 4), torch.randint(0, 2, (12,))
    weights = []
    for compiled in (False, True):
        torch.manual_seed(0)
        config = TrainConfig(effective_batch=6, compile=compiled, optim=OptimConfig(lr=0.05))
        parts = build(Net(), nn.CrossEntropyLoss(), config)
        assert (parts.forward is parts.model) != compiled
        list(train_epoch(parts, windowed(x, y, effective=6, micro=4).epoch(0, 0), update=0))
        assert all("_orig_mod" not in name for name in parts.model.state_dict())
        weights.append(torch.cat([p.detach().flatten() for p in parts.model.parameters()]))
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-4, atol=1e-6)


def test_a_model_left_in_eval_mode_is_trained_in_train_mode(build):
    model = Net().eval()
    build(model, nn.CrossEntropyLoss(), TrainConfig())
    assert all(module.training for module in model.modules())


def test_a_submodule_in_eval_mode_stays_in_eval_mode(build):
    model = Net()
    model.backbone.eval()
    build(model, nn.CrossEntropyLoss(), TrainConfig())
    assert (model.training, model.backbone.training, model.head.training) == (True, False, True)


def test_a_loss_with_parameters_is_refused(build):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, output, target):
            return nn.functional.cross_entropy(output * self.scale, target)

    with pytest.raises(InvalidModel, match="parameters of its own: scale"):
        build(Net(), Scaled(), TrainConfig())


def test_sparse_gradients_are_refused_with_any_optimizer(build):
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True))
    for options in ({}, {"optimizer": torch.optim.SparseAdam}):
        with pytest.raises(InvalidModel, match="sparse=True"):
            build(model, lambda m, batch: m(batch[0]).mean(), TrainConfig(), **options)


def test_sync_batchnorm_is_used_for_several_processes(build, monkeypatch):
    calls = []
    monkeypatch.setattr("trueloop.training.assemble.convert_sync_batchnorm", lambda *arguments: calls.append(arguments))
    for wanted in (False, True):
        build(Net(), nn.CrossEntropyLoss(), TrainConfig(parallel=ParallelConfig(sync_batchnorm=wanted)))
    (_, device, processes), *others = calls
    assert (device.type, processes.size, others) == ("cpu", 1, [])
