"""Every setting has a consequence, and all differences between two runs are found."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, is_dataclass, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from trueloop.core.errors import CheckpointError
from trueloop.training.checkpoint.checkpoints import CheckpointFolder
from trueloop.training.checkpoint.run_identity import (
    CONSEQUENCES,
    Differences,
    compare,
    consequence,
    identify,
    saved_identity,
)
from trueloop.training.config import (
    CheckpointConfig,
    GuardConfig,
    MonitorConfig,
    OptimConfig,
    ParallelConfig,
    ScheduleConfig,
    TrainConfig,
)

FACTS = {"options", "code", "model", "objective", "optimizer", "data", "data.test", "on"}


def leaves(record: object, above: str = "") -> list[str]:
    """Return the dotted names of all settings in a tree of dataclasses."""
    names: list[str] = []
    for field in fields(record):  # pyright: ignore[reportArgumentType]
        value = getattr(record, field.name)
        names += leaves(value, f"{above}{field.name}.") if is_dataclass(value) else [f"{above}{field.name}"]
    return names


def identity(
    build, config: TrainConfig | None = None, *, model=None, objective=None, has_user_optimizer=False, **given
):
    config = config or TrainConfig()
    model, objective = model or nn.Linear(2, 3), objective or nn.CrossEntropyLoss()
    parts = build(model, objective, config)
    return identify(config, parts, objective=objective, extra=given, has_user_optimizer=has_user_optimizer)


def test_exactly_the_settings_are_classified():
    """Every new field of TrainConfig needs an entry in CONSEQUENCES."""
    assert set(CONSEQUENCES) - FACTS == set(leaves(TrainConfig()))
    assert set(CONSEQUENCES) >= FACTS


def test_an_unknown_name_is_breaking_and_a_name_uses_its_prefix():
    assert consequence("something.new") == consequence("something") == "breaking"
    assert consequence("options.width") == consequence("code.mine.py") == consequence("data.train") == "breaking"
    assert consequence("data.test") == "harmless"
    assert consequence("on.torch") == "inexact"


def test_an_identity_is_the_same_after_saving_and_loading(build, tmp_path):
    config = TrainConfig(freeze=("1.*",), ema=0.9, optim=OptimConfig(betas=(0.8, 0.9)))
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3))
    original = identity(
        build, config, model=model, options={"width": 4, "kinds": ("a", "b"), "drop": None, "nan": float("nan")}
    )
    json.dumps(original)
    checkpoint = CheckpointFolder(tmp_path).save({"identity": dict(original)}, update=1, epoch=0, metrics={})
    read = saved_identity(checkpoint)
    assert read is not None
    assert compare(read, original) == compare(original, original) == Differences()
    assert compare(original, original).same_run


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"workers": 3, "device": "cpu", "evaluate_every_epochs": 2, "recompute": True}, "harmless"),
        ({"checkpoint": CheckpointConfig(keep_last=9), "monitor": MonitorConfig(patience=3)}, "harmless"),
        ({"guard": GuardConfig(max_in_a_row=2), "epochs": 30}, "harmless"),
        ({"micro_batch": 16, "deterministic": True, "compile": True}, "inexact"),
        ({"seed": 1, "effective_batch": 32, "drop_last": True}, "breaking"),
        ({"optim": OptimConfig(lr=1.0, betas=(0.5, 0.5), name="sgd"), "clip": None, "ema": 0.5}, "breaking"),
        ({"schedule": ScheduleConfig(name="linear", warmup=0.1), "precision": "bf16", "freeze": ("x",)}, "breaking"),
        ({"monitor": MonitorConfig(metric="val/accuracy", mode="max")}, "breaking"),
    ],
)
def test_changed_settings_have_their_consequence(changed, expected):
    saved, present = ({**flatten(config)} for config in (TrainConfig(), replace(TrainConfig(), **changed)))
    result = compare(saved, present)
    assert result.all
    assert result.all == tuple(result.with_consequence(expected))


def flatten(config: TrainConfig, above: str = "") -> dict:
    tree = json.loads(json.dumps(asdict(config)))
    return {
        f"{key}.{inner}" if isinstance(value, dict) else key: value[inner] if isinstance(value, dict) else value
        for key, value in tree.items()
        for inner in (value if isinstance(value, dict) else [""])
    }


def test_differences_are_formatted_as_in_the_command_line():
    saved = {**flatten(TrainConfig()), "options.width": 4, "data.train": "10:sha256:aa"}
    present = {
        **flatten(TrainConfig(clip=None, optim=OptimConfig(betas=(0.5, 0.9)), drop_last=True)),
        "data.train": "9:x",
    }
    with pytest.raises(CheckpointError) as refused:
        compare(saved, present).raise_if_breaking()
    assert refused.value.what.splitlines()[1:] == [
        "  drop_last: was false, is true",
        "  optim.betas: was 0.9 0.999, is 0.5 0.9",
        "  clip: was 1.0, is none",
        "  data.train: was 10:sha256:aa, is 9:x",
        "  options.width: was 4, is absent",
    ]
    assert "--allow-change" in refused.value.fix
    assert "--fresh" in refused.value.fix


def test_only_breaking_differences_are_refused():
    compare(flatten(TrainConfig()), flatten(TrainConfig(workers=2, micro_batch=8, epochs=90))).raise_if_breaking()


@pytest.mark.parametrize("config", [TrainConfig(epochs=11), TrainConfig(schedule=ScheduleConfig(horizon_epochs=5))])
def test_a_longer_run_is_not_the_same_run(config: TrainConfig):
    result = compare(flatten(TrainConfig()), flatten(config))
    assert result.with_consequence("breaking") == result.with_consequence("inexact") == []
    assert not result.same_run


def test_a_setting_that_did_not_exist_when_the_run_was_saved_had_its_default():
    saved = flatten(TrainConfig())
    del saved["clip"]
    assert compare(saved, flatten(TrainConfig())).all == ()
    (difference,) = compare(saved, flatten(TrainConfig(clip=None))).all
    assert str(difference) == "clip: was 1.0, is none"


def test_without_micro_batch_it_is_the_effective_batch(build):
    assert identity(build, TrainConfig(micro_batch=64)) == identity(build, TrainConfig())


def test_code_is_the_same_if_bytes_or_syntax_are():
    def differs(was: str, now: str) -> bool:
        return bool(compare({"code.mine.py": was}, {"code.mine.py": now, **flatten(TrainConfig())}).all)

    assert not differs("aa/bb", "aa/bb")
    assert not differs("aa/bb", "cc/bb")  # a comment
    assert not differs("aa/bb", "aa/cc")  # another Python
    assert differs("aa/bb", "cc/dd")
    assert differs("aa/bb", "absent")


def test_a_model_is_identified_by_its_layers_and_arguments(build):
    def model(p: float = 0.5, function=torch.relu) -> nn.Module:
        layers = nn.Sequential(nn.Linear(2, 3), nn.Dropout(p))
        layers.extra_repr = lambda: f"activation={function} <object at 0x{id(layers):x}>"
        return layers

    assert identity(build, model=model()) == identity(build, model=model())
    (difference,) = compare(identity(build, model=model()), identity(build, model=model(0.1))).all
    assert (difference.name, difference.consequence) == ("model", "breaking")


@pytest.mark.parametrize(
    "other",
    [
        nn.CrossEntropyLoss(label_smoothing=0.1),
        nn.CrossEntropyLoss(weight=torch.ones(3)),
        nn.CrossEntropyLoss(ignore_index=0),
        nn.MSELoss(),
        lambda model, batch: model(batch[0]).sum(),
    ],
)
def test_an_objective_is_identified_by_its_arguments_and_tensors(build, other):
    (difference,) = compare(identity(build), identity(build, objective=other)).all
    assert difference.name == "objective"


def test_a_custom_optimizer_is_identified_by_its_defaults(build):
    model = nn.Linear(2, 3)

    def made(lr: float):
        parts = build(model, nn.CrossEntropyLoss(), TrainConfig(), optimizer=lambda ps: torch.optim.SGD(ps, lr=lr))
        return identify(TrainConfig(), parts, objective=None, extra={}, has_user_optimizer=True)

    assert made(0.1) == made(0.1)
    (difference,) = compare(made(0.1), made(0.2)).all
    assert difference.name == "optimizer"


NAMES = st.sampled_from(["seed", "clip", "workers", "options.a", "data.train", "data.test", "on.torch", "code.x.py"])
VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.integers()))


@given(saved=st.dictionaries(NAMES, VALUES), present=st.dictionaries(NAMES, VALUES))
def test_comparing_is_symmetric_and_complete(saved: dict, present: dict):
    base = flatten(TrainConfig())
    one, other = compare({**base, **saved}, {**base, **present}), compare({**base, **present}, {**base, **saved})
    assert {(each.name, str(each.saved), str(each.current)) for each in one.all} == {
        (each.name, str(each.current), str(each.saved)) for each in other.all
    }
    assert sum(len(one.with_consequence(kind)) for kind in ("harmless", "inexact", "breaking")) == len(one.all)


def test_a_checkpoint_without_an_identity_has_none(tmp_path):
    checkpoint = CheckpointFolder(tmp_path).save({"model": {}}, update=1, epoch=0, metrics={})
    assert saved_identity(checkpoint) is None
    (checkpoint.path / "state.json").write_text("[")
    assert saved_identity(checkpoint) is None
    (checkpoint.path / "state.json").unlink()
    assert saved_identity(checkpoint) is None


def test_sync_batchnorm_does_not_change_the_identity(build):
    with_batchnorm = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    requested = TrainConfig(parallel=ParallelConfig(sync_batchnorm=True))
    assert (
        identity(build, requested, model=with_batchnorm)["model"]
        == identity(build, requested, model=converted)["model"]
    )
    assert identity(build, model=with_batchnorm)["model"] != identity(build, model=converted)["model"]
