"""Check all settings before anything is built: first their types, then their values."""

import math
import operator
import types
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from trueloop.core.errors import InvalidConfig
from trueloop.training.config import TrainConfig

MAX_THREADS: Final = 4096  # no machine has more cores; each thread takes memory, and torch aborts when none is left


def validate(config: TrainConfig) -> None:
    """Check the types and ranges of all settings.

    Raises:
        InvalidConfig: a setting is invalid; the message names it, its value and what is expected.
    """
    check_types(config)
    for name, (is_valid, expected) in _CONSTRAINTS.items():
        value = operator.attrgetter(name)(config)
        if value is not None and not is_valid(value):
            raise InvalidConfig(f"{name} is {value!r}.", fix=f"It must be {expected}.")
    schedule, epochs = config.schedule, config.epochs
    ends_at_zero = schedule.name == "onecycle" or (schedule.name in ("cosine", "linear") and schedule.floor == 0)
    if ends_at_zero and (schedule.horizon_epochs or epochs) < epochs:
        raise InvalidConfig(
            f"schedule.horizon_epochs is {schedule.horizon_epochs}, and epochs is {epochs}.",
            why=f"The rate of {schedule.name} reaches 0 after {schedule.horizon_epochs} epochs: "
            "in the other epochs the model would not change.",
            fix="Set schedule.floor above 0 (cosine, linear), or a longer horizon.",
        )


def check_types(config: Any, prefix: str = "") -> None:
    """Compare every field of nested dataclasses with its annotation.

    Raises:
        InvalidConfig: a field has a value of another type.
    """
    hints = get_type_hints(type(config))
    for field in fields(config):
        value, name = getattr(config, field.name), prefix + field.name
        if is_dataclass(value) and isinstance(hints[field.name], type) and isinstance(value, hints[field.name]):
            check_types(value, f"{name}.")
        elif not _has_type(value, hints[field.name]):
            raise InvalidConfig(
                f"{name} is {value!r}, a {type(value).__name__}.",
                fix=f"It must be {_describe_type(hints[field.name])}.",
            )


def _has_type(value: Any, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(_has_type(value, option) for option in get_args(hint))
    if origin is Literal:
        return value in get_args(hint)
    if origin is tuple:
        return isinstance(value, tuple) and all(_has_type(part, get_args(hint)[0]) for part in value)
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def _describe_type(hint: Any) -> str:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_describe_type(option) for option in get_args(hint))
    if origin is Literal:
        return "one of " + ", ".join(map(str, get_args(hint)))
    if origin is tuple:
        return f"a tuple of {_describe_type(get_args(hint)[0])}"
    descriptions = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "none"}
    return descriptions.get(hint) or getattr(hint, "__name__", str(hint))


def _is_positive(value: float) -> bool:
    return 0 < value < math.inf


def _is_at_least_one(value: int) -> bool:
    return value >= 1


def _is_storage_url(url: str) -> bool:
    protocol, _, path = url.partition("://")
    return bool(protocol and path.strip("/"))


def _is_not_negative(value: float) -> bool:
    return 0 <= value < math.inf


_CONSTRAINTS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "epochs": (_is_at_least_one, "at least 1"),
    "effective_batch": (_is_at_least_one, "at least 1"),
    "micro_batch": (_is_at_least_one, "at least 1, or none"),
    "seed": (lambda value: 0 <= value < 2**32, "in [0, 2**32), which every generator accepts"),
    "workers": (_is_not_negative, "0 or more, or none to choose"),
    "threads": (lambda value: 1 <= value <= MAX_THREADS, f"from 1 to {MAX_THREADS}, or none for torch's default"),
    "clip": (_is_positive, "a positive bound, or none"),
    "ema": (lambda value: 0 < value < 1, "between 0 and 1, or none"),
    "optim.lr": (_is_positive, "positive and finite"),
    "optim.weight_decay": (_is_not_negative, "0 or more"),
    "optim.eps": (_is_positive, "positive"),
    "optim.momentum": (lambda value: 0 <= value < 1, "in [0, 1)"),
    "optim.betas": (lambda value: len(value) == 2 and all(0 <= beta < 1 for beta in value), "two numbers in [0, 1)"),
    "schedule.warmup": (lambda value: 0 <= value < 1, "a share of all updates, in [0, 1)"),
    "schedule.floor": (lambda value: 0 <= value < 1, "a share of the peak, in [0, 1)"),
    "schedule.step_epochs": (_is_at_least_one, "at least 1"),
    "schedule.gamma": (_is_positive, "positive"),
    "schedule.horizon_epochs": (_is_at_least_one, "at least 1, or none for the number of epochs"),
    "monitor.patience": (_is_at_least_one, "at least 1, or none"),
    "monitor.min_delta": (_is_not_negative, "0 or more"),
    "checkpoint.every_epochs": (_is_at_least_one, "at least 1"),
    "checkpoint.every_updates": (_is_at_least_one, "at least 1, or none"),
    "checkpoint.keep_last": (_is_at_least_one, "at least 1"),
    "checkpoint.keep_best": (_is_not_negative, "0 or more"),
    "checkpoint.mirror": (_is_storage_url, 'an address such as "s3://bucket/run", or none'),
    "guard.max_in_a_row": (_is_at_least_one, "at least 1"),
    "evaluate_every_epochs": (_is_at_least_one, "at least 1"),
    "parallel.timeout_s": (_is_positive, "positive, in seconds"),
    "parallel.keepalive_timeout_s": (_is_positive, "positive, in seconds"),
}
