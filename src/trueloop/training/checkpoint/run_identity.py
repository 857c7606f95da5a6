"""Identify a run by everything that determines its weights, and compare identities before the run is resumed.

A run that is resumed with another batch size, other data or edited code trains without an error, but it is neither the
old run nor a new one. So everything that determines a run's weights is saved by name, and `CONSEQUENCES` states for
every name what a change of its value means.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast

import torch
from torch import nn

from trueloop.core.errors import CheckpointError
from trueloop.core.json_text import parse_json
from trueloop.training.checkpoint.manifest import STATE, Checkpoint
from trueloop.training.checkpoint.state_tree import unpack
from trueloop.training.config import TrainConfig
from trueloop.training.distributed.dtensors import describe_layers
from trueloop.training.loop import Assembly
from trueloop.version import __version__

Identity = Mapping[str, Any]
"""Dotted name -> JSON-ready value: settings as in `TrainConfig`, and the facts at the end of `CONSEQUENCES`."""

Consequence = Literal["harmless", "inexact", "breaking"]

CONSEQUENCES: Mapping[str, Consequence] = {
    # harmless: the weights after every update equal those of the uninterrupted run, bit for bit
    # inexact: the run is the same, with other rounding or other random masks
    # breaking: the run is a different one
    "epochs": "harmless",  # `RunState.resume` checks for fewer epochs than are done, and for a changed horizon
    "effective_batch": "breaking",
    "micro_batch": "inexact",
    "drop_last": "breaking",
    "seed": "breaking",
    "seeding": "harmless",  # a resumed run restores its generators from the checkpoint
    "deterministic": "inexact",
    "device": "harmless",  # the device in use is a separate fact: "on.device"
    "threads": "harmless",  # the number in use is a separate fact: "on.threads"
    "workers": "harmless",
    "optim.name": "breaking",
    "optim.lr": "breaking",
    "optim.weight_decay": "breaking",
    "optim.decay_all": "breaking",
    "optim.betas": "breaking",
    "optim.eps": "breaking",
    "optim.momentum": "breaking",
    "optim.nesterov": "breaking",
    "schedule.name": "breaking",
    "schedule.warmup": "breaking",
    "schedule.floor": "breaking",
    "schedule.step_epochs": "breaking",
    "schedule.gamma": "breaking",
    "schedule.horizon_epochs": "harmless",  # checked like "epochs"
    "precision": "breaking",
    "clip": "breaking",
    "freeze": "breaking",
    "ema": "breaking",
    "monitor.metric": "breaking",  # the best value so far belongs to the old metric
    "monitor.mode": "breaking",
    "monitor.patience": "harmless",
    "monitor.min_delta": "harmless",
    "checkpoint.every_epochs": "harmless",
    "checkpoint.every_updates": "harmless",
    "checkpoint.keep_last": "harmless",
    "checkpoint.keep_best": "harmless",
    "checkpoint.final": "harmless",
    "checkpoint.blocking": "harmless",
    "checkpoint.mirror": "harmless",
    "guard.enabled": "breaking",
    "guard.max_in_a_row": "harmless",
    "guard.locate": "harmless",
    "parallel.engine": "inexact",
    "parallel.find_unused_parameters": "harmless",
    "parallel.sync_batchnorm": "breaking",
    "parallel.timeout_s": "harmless",
    "parallel.keepalive_timeout_s": "harmless",
    "compile": "inexact",
    "recompute": "harmless",  # bitwise the same gradients, see `recompute.enable_recompute`
    "channels_last": "inexact",
    "out_of_memory": "harmless",  # the resulting micro-batch is saved with the run
    "evaluate_every_epochs": "harmless",
    # Facts. A name that is not listed uses its longest listed prefix.
    "options": "breaking",  # settings of the recipe
    "code": "breaking",  # one fact per source file of the user, see `code_version`
    "model": "breaking",
    "objective": "breaking",
    "optimizer": "breaking",  # an optimizer of the user, with its defaults
    "data": "breaking",  # fingerprints of train and val, the sampler, how ready batches are combined
    "data.test": "harmless",  # evaluated only once, at the end
    "on": "inexact",  # device, threads, processes, torch, trueloop
}

# A change of one of these changes the order of the current epoch, so that epoch has to restart.
_ORDER_SETTINGS = ("seed", "effective_batch", "drop_last", "data.train", "data.sampler", "data.labels", "data.batches")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A name whose saved and current values differ; a missing value is the string "absent"."""

    name: str
    saved: Any
    current: Any
    consequence: Consequence

    def __str__(self) -> str:
        return f"{self.name}: was {_format_value(self.saved)}, is {_format_value(self.current)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """All differences between a saved run and this one."""

    all: tuple[Difference, ...] = ()

    def with_consequence(self, consequence: Consequence) -> list[Difference]:
        """Return the differences with this consequence."""
        return [difference for difference in self.all if difference.consequence == consequence]

    def __contains__(self, name: str) -> bool:
        return any(difference.name == name for difference in self.all)

    @property
    def same_run(self) -> bool:
        """True if the resumed run ends with bitwise the same weights as the original one."""
        return not self.decisive

    @property
    def decisive(self) -> list[Difference]:
        """All differences that may change the final weights."""
        horizon = ("epochs", "schedule.horizon_epochs")
        return [each for each in self.all if each.consequence != "harmless" or each.name in horizon]

    @property
    def changes_order(self) -> bool:
        """True if the data or their order differ from those of the saved epoch."""
        return any(each.name.startswith(_ORDER_SETTINGS) for each in self.all)

    def raise_if_breaking(self) -> None:
        """Check that this run is the saved one.

        Raises:
            CheckpointError: there are breaking differences; the message lists them.
        """
        if breaking := self.with_consequence("breaking"):
            raise CheckpointError(
                "The run in this folder is a different one:\n  " + "\n  ".join(map(str, breaking)),
                why="If it continued, it would be neither the old run nor a new one.",
                fix="Undo the change; or --fresh to start over (Trainer(fresh=True)), in another folder to keep both; "
                "or --allow-change to continue anyway (Trainer(allow_change=True)).",
            )


def identify(
    config: TrainConfig, assembly: Assembly, *, objective: object, extra: Mapping[str, Any], has_user_optimizer: bool
) -> Identity:
    """Return the identity of an assembled run.

    Args:
        config: settings of the run.
        assembly: the assembled run.
        objective: the objective that the user passed.
        extra: facts that only the caller knows, by name: "code", "data", "options"; mappings may be nested.
        has_user_optimizer: True if the user passed an optimizer, which `config.optim` then does not describe.
    """
    settings = asdict(config) | {"micro_batch": config.micro_batch or config.effective_batch}
    facts: dict[str, Any] = {
        **settings,
        "model": _digest(_describe_layers(assembly.model, ignore_sync=config.parallel.sync_batchnorm)),
        "objective": _describe_objective(objective),
        "on": {
            "device": assembly.device.type,
            "threads": torch.get_num_threads(),
            "processes": assembly.parallel.processes.size,
            "torch": str(torch.__version__),
            "trueloop": __version__,
        },
        **extra,
    }
    if has_user_optimizer:
        facts["optimizer"] = f"{type(assembly.optimizer).__name__} {assembly.optimizer.defaults}"
    return dict(_flatten(facts))


def compare(saved: Identity, current: Identity) -> Differences:
    """Return the differences, in the order of this run's settings.

    Args:
        saved: the saved identity. A setting that did not exist when it was saved counts as having its default.
        current: identity of this run, from `identify`.
    """
    saved = {name: value for name, value in _flatten(asdict(TrainConfig())) if name in current} | dict(saved)
    names = dict.fromkeys([*current, *saved])
    values = ((name, saved.get(name, "absent"), current.get(name, "absent")) for name in names)
    return Differences(
        all=tuple(
            Difference(name=name, saved=old, current=new, consequence=consequence(name))
            for name, old, new in values
            if not _is_same(name, old, new)
        )
    )


def consequence(name: str) -> Consequence:
    """Return the consequence of a name's longest prefix in `CONSEQUENCES`; "breaking" if there is none."""
    while name not in CONSEQUENCES and "." in name:
        name = name.rpartition(".")[0]
    return CONSEQUENCES.get(name, "breaking")


def saved_identity(checkpoint: Checkpoint) -> Identity | None:
    """Read only the identity from a checkpoint, without its tensors and their checksums.

    Returns:
        None if the checkpoint cannot be read or has no identity.
    """
    try:
        return unpack(parse_json((checkpoint.path / STATE).read_bytes())["identity"], {})
    except (OSError, ValueError, LookupError, CheckpointError):
        return None


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flatten(cast("Mapping[str, Any]", value), f"{prefix}{key}.")
        else:  # converted to JSON and back: a tuple becomes a list, as in the saved identity
            yield f"{prefix}{key}", json.loads(json.dumps(value, default=str))


def _is_same(name: str, saved: Any, current: Any) -> bool:
    if name.startswith("code.") and isinstance(saved, str) and isinstance(current, str):
        # Digests of bytes and of syntax: if either matches, nothing has changed, see `code_version.fingerprint`.
        return any(old == new for old, new in zip(saved.split("/"), current.split("/"), strict=False))
    return json.dumps(saved) == json.dumps(current)  # so that a NaN equals itself and True is not 1


def _format_value(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, cast("list[Any]", value))) or "empty"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _describe_objective(objective: object) -> str:
    """Describe a loss: its name and arguments, and a digest of its tensors."""
    if not isinstance(objective, nn.Module):
        return getattr(objective, "__qualname__", type(objective).__qualname__)
    arguments = {
        name: value
        for name, value in vars(objective).items()
        if type(value) in (bool, int, float, str) and name != "training" and not name.startswith("_")
    }
    tensors = [buffer.detach().cpu().tolist() for _, buffer in objective.named_buffers()]
    parts = [f"{name}={value}" for name, value in arguments.items()] + ([_digest(str(tensors))] if tensors else [])
    return f"{type(objective).__name__}({', '.join(parts)})"


def _describe_layers(model: nn.Module, *, ignore_sync: bool) -> str:
    """Describe a model's layers and their arguments, the same on any number of processes."""
    description = re.sub(r" at 0x[0-9a-f]+", "", describe_layers(model))
    # Several processes train with SyncBatchNorm layers, a single one with the original BatchNorm layers.
    return re.sub(r"\b(Sync|)BatchNorm\w*\(", "BatchNorm(", description) if ignore_sync else description


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
