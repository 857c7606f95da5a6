"""Detectors of gradients release the state of deleted optimizers."""

from __future__ import annotations

from typing import Any

import pytest

from trueloop.failures.gradient import always_zero, never_received
from trueloop.tracing.events import Ref, Refs, StepTaken, WatchEnded
from trueloop.tracing.trackers.accumulation_windows import AccumulationWindows
from trueloop.tracing.trackers.tensor_origins import TensorOrigins


def step_taken(update: int, optimizer: Ref, parameters: Refs, **overrides: Any) -> StepTaken:
    options: dict[str, Any] = {"with_gradient": parameters} | overrides
    return StepTaken(
        update=update,
        backward_count=update,
        optimizer=optimizer,
        parameters=parameters,
        grad_norm=1.0,
        live_parameters={},
        **options,
    )


def create_optimizer(number: int) -> tuple[Ref, Refs, Ref]:
    first, second = (Ref("Parameter", name) for name in ("0.weight", "1.weight"))
    return Ref("SGD", f"SGD {number}"), frozenset((first, second)), first


def train_models(detector: Any, trials: int, steps: int = 20) -> list[Any]:
    """Train one model after the other, each with a parameter that never has a useful gradient."""
    found: list[Any] = []
    for number in range(trials):
        optimizer, parameters, first = create_optimizer(number)
        for step in range(steps):
            update = number * steps + step
            if isinstance(detector, always_zero.Detector):
                fields = {"gradient_norms": {first: 0.0}}
            else:
                fields = {"with_gradient": frozenset((first,))}
            event = step_taken(update, optimizer, parameters, **fields)
            evidence = detector.on_step_taken(event)
            found += evidence if isinstance(evidence, list) else []
    return found


def new_detector(module):
    detector = module.Detector()
    detector.origins, detector.windows = TensorOrigins(), AccumulationWindows()
    return detector


@pytest.mark.parametrize("module", [always_zero, never_received])
def test_state_of_deleted_optimizers_is_released(module):
    detector = new_detector(module)
    train_models(detector, 300)
    sizes = [len(each) for each in vars(detector).values() if hasattr(each, "__len__")]
    assert sum(sizes) <= 12


@pytest.mark.parametrize("module", [always_zero, never_received])
def test_deleted_optimizers_are_still_reported(module):
    detector = new_detector(module)
    found = train_models(detector, 10)
    assert {each.dedup_key.name for each in found} >= {f"SGD {number}" for number in range(6)}
    found += detector.on_watch_ended(WatchEnded(update=10_000, backward_count=10_000))
    assert len(found) == 10
    assert detector.inconclusive() == ""


def test_gradients_of_deleted_optimizers_count():
    detector = new_detector(never_received)
    first_optimizer, parameters, first = create_optimizer(0)
    (second,) = parameters - {first}
    for update in range(20):
        detector.on_step_taken(step_taken(update, first_optimizer, parameters, with_gradient=frozenset((first,))))
    del first_optimizer
    second_optimizer, *_ = create_optimizer(1)
    for update in range(20, 200):
        found = detector.on_step_taken(
            step_taken(update, second_optimizer, parameters, with_gradient=frozenset((second,)))
        )
        assert not found
