"""The optimizer has exactly the trainable parameters, each once, with the right weight decay."""

from typing import get_args, get_type_hints

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from trueloop.core.errors import InvalidConfig, InvalidModel
from trueloop.training.config import OptimConfig
from trueloop.training.optimizers.parameter_groups import (
    CLASSES,
    FUSED_DEVICES,
    build_optimizer,
    check_optimizer,
    freeze,
)

NAMES = sorted(CLASSES)


def network():
    return nn.ModuleDict(
        {
            "backbone": nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU()),
            "embedding": nn.Embedding(7, 4),
            "head": nn.Linear(4, 2),
        }
    )


def names_by_group(model, optimizer):
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {group["name"]: [names[id(parameter)] for parameter in group["params"]] for group in optimizer.param_groups}


def test_only_matrices_and_filters_decay():
    model = network()
    optimizer = build_optimizer(model, OptimConfig(weight_decay=0.1))
    assert names_by_group(model, optimizer) == {
        "decay": ["backbone.0.weight", "embedding.weight", "head.weight"],
        "no_decay": ["backbone.0.bias", "backbone.1.weight", "backbone.1.bias", "head.bias"],
    }
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]


def test_decay_all_and_zero_decay_have_one_group():
    model = network()
    everything = [name for name, _ in model.named_parameters()]
    assert names_by_group(model, build_optimizer(model, OptimConfig(decay_all=True))) == {"decay": everything}
    assert names_by_group(model, build_optimizer(model, OptimConfig(weight_decay=0.0))) == {"no_decay": everything}


def test_an_empty_group_is_left_out():
    model = nn.Linear(3, 2, bias=False)
    assert names_by_group(model, build_optimizer(model, OptimConfig())) == {"decay": ["weight"]}


@given(patterns=st.lists(st.sampled_from(["backbone.*", "*.bias", "head.bias", "embedding.*"]), unique=True))
def test_frozen_and_optimized_parameters_are_complements(patterns):
    model = network()
    frozen = freeze(model, patterns)
    optimizer = build_optimizer(model, OptimConfig())
    optimized = [name for group in names_by_group(model, optimizer).values() for name in group]
    assert sorted(frozen + optimized) == sorted(name for name, _ in model.named_parameters())
    assert all(parameter.requires_grad == (name not in frozen) for name, parameter in model.named_parameters())
    check_optimizer(model, optimizer)


def test_freezing_does_not_stop_batchnorm_statistics():
    model = network()
    freeze(model, ["backbone.*"])
    before = model["backbone"][1].running_mean.clone()
    model["backbone"](torch.ones(2, 1, 5, 5))
    assert not torch.equal(before, model["backbone"][1].running_mean)


def test_a_pattern_that_matches_nothing_is_refused_with_a_suggestion():
    model = network()
    with pytest.raises(InvalidConfig, match=r"'backbon\.\*', which matches no parameter") as refused:
        freeze(model, ["head.*", "backbon.*"])
    assert refused.value.fix == "Did you mean 'backbone.*'?"
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_pattern_without_a_similar_name_lists_the_names():
    with pytest.raises(InvalidConfig, match=r"backbone\.0\.weight, .* and 2 more"):
        freeze(network(), ["XYZ"])


def test_a_tied_weight_is_frozen_by_either_name_and_optimized_once():
    model = nn.ModuleDict({"embedding": nn.Embedding(7, 4), "head": nn.Linear(4, 7)})
    model["head"].weight = model["embedding"].weight
    optimizer = build_optimizer(model, OptimConfig())
    assert names_by_group(model, optimizer) == {"decay": ["embedding.weight"], "no_decay": ["head.bias"]}
    assert freeze(model, ["head.weight"]) == ["head.weight"]
    assert not model["embedding"].weight.requires_grad


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_fused_is_used_if_torch_has_a_kernel_and_gives_the_same_step(name, dtype):
    steps = []
    for kind in ("built", "plain"):
        torch.manual_seed(0)
        model = nn.Linear(5, 3).to(dtype)
        config = OptimConfig(name=name, lr=0.1, decay_all=True)
        optimizer = build_optimizer(model, config)
        if kind == "built":
            assert bool(optimizer.param_groups[0].get("fused")) == ("cpu" in FUSED_DEVICES[name])
            assert isinstance(optimizer, CLASSES[name])
        else:
            settings = {key: getattr(config, key) for key in ("betas", "momentum") if key in optimizer.defaults}
            optimizer = CLASSES[name](model.parameters(), lr=0.1, weight_decay=0.01, foreach=False, **settings)
        for _ in range(3):
            model(torch.ones(2, 5, dtype=dtype)).square().sum().backward()
            optimizer.step()
        steps.append([parameter.detach().clone() for parameter in model.parameters()])
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 5e-2}[dtype]
    torch.testing.assert_close(steps[0], steps[1], rtol=tolerance, atol=tolerance)


def test_settings_are_passed_to_the_class_that_has_them():
    model = network()
    config = OptimConfig(lr=0.2, betas=(0.8, 0.9), eps=1e-6, momentum=0.7, nesterov=True)
    adam = build_optimizer(model, config).defaults
    sgd = build_optimizer(model, OptimConfig(name="sgd", lr=0.2, momentum=0.7, nesterov=True)).defaults
    assert (adam["lr"], adam["betas"], adam["eps"]) == (0.2, (0.8, 0.9), 1e-6)
    assert (sgd["lr"], sgd["momentum"], sgd["nesterov"]) == (0.2, 0.7, True)


def test_every_name_in_the_config_has_a_class():
    assert set(get_args(get_type_hints(OptimConfig)["name"])) == set(CLASSES) == set(FUSED_DEVICES)


def test_complex_parameters_are_stepped_without_the_fused_kernel():
    model = nn.Module()
    model.phase = nn.Parameter(torch.ones(2, 2, dtype=torch.complex64))
    optimizer = build_optimizer(model, OptimConfig(lr=0.1))
    assert not optimizer.param_groups[0]["fused"]
    model.phase.abs().sum().backward()
    optimizer.step()
    assert (model.phase.real < 1).all()


def test_sparse_embeddings_are_refused():
    model = nn.ModuleDict({"words": nn.Embedding(7, 4, sparse=True)})
    with pytest.raises(InvalidModel, match="sparse=True: words"):
        build_optimizer(model, OptimConfig())
    model.append = nn.Linear(2, 2)
    freeze(model, ["words.*"])
    assert build_optimizer(model, OptimConfig()).param_groups


def test_without_trainable_parameters_the_frozen_ones_are_listed():
    model = network()
    freeze(model, ["*"])
    with pytest.raises(InvalidModel, match=r"nothing to train: backbone\.0\.weight.* and 2 more frozen"):
        build_optimizer(model, OptimConfig())
    with pytest.raises(InvalidModel, match="no parameters"):
        build_optimizer(nn.ReLU(), OptimConfig())


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"betas": (0.9, 1.0)}, r"AdamW does not accept its settings: .*1\.0"),
        ({"name": "sgd", "nesterov": True, "momentum": 0.0}, "Nesterov"),
    ],
)
def test_an_invalid_setting_is_refused_with_its_value(setting, message):
    with pytest.raises(InvalidConfig, match=message):
        build_optimizer(network(), OptimConfig(**setting))


def test_missing_frozen_and_foreign_parameters_are_listed():
    model, stranger = network(), nn.Linear(9, 8)
    freeze(model, ["head.bias"])
    optimizer = torch.optim.SGD([model["head"].bias, stranger.weight, model["head"].weight], lr=0.1)
    with pytest.raises(InvalidModel) as refused:
        check_optimizer(model, optimizer)
    assert refused.value.what.splitlines() == [
        (
            "Trainable, but not in the optimizer: backbone.0.weight, backbone.0.bias, backbone.1.weight, "
            "backbone.1.bias, embedding.weight."
        ),
        "In the optimizer, but frozen: head.bias.",
        "In the optimizer, but not in the model: group 0, index 1, shape (8, 9).",
    ]


def test_at_most_five_are_listed():
    with pytest.raises(InvalidModel, match="and 2 more"):
        check_optimizer(network(), torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1))


def test_a_parameter_in_two_groups_is_reported():
    model = nn.Linear(2, 2, bias=False)
    with pytest.warns(UserWarning, match="duplicate parameters"):
        optimizer = torch.optim.SGD([model.weight, model.weight], lr=0.1)
    with pytest.raises(InvalidModel, match="more than once: weight"):
        check_optimizer(model, optimizer)
