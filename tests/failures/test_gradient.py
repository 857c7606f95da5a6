"""What detectors of gradients know of optimizers goes with these, however many a program makes."""

from __future__ import annotations

from typing import Any

import pytest

from trueloop.failures.gradient import always_zero, never_received
from trueloop.tracing.events import NO_REFS, Ref, Refs, StepTaken, WatchEnded


def stepped(update: int, optimizer: Ref, held: Refs, **overrides: Any) -> StepTaken:
    options: dict[str, Any] = {"with_gradient": held, "zero": NO_REFS} | overrides
    return StepTaken(
        update=update, backward_count=update, optimizer=optimizer, learning_rates=(), parameters=held, reused_gradients=NO_REFS, reused_at=None,
        backwards=1, cleared_between=False, cleared_at=None, grad_norm=1.0, grad_norm_after_backward=None, nonfinite_gradients=NO_REFS,
        frozen_changed=NO_REFS, frozen=NO_REFS, scaler=None, closure=False, seconds=0.0, **options,
    )  # fmt: skip


def made(number: int) -> tuple[Ref, Refs, Ref]:
    first, second = (Ref("Parameter", name) for name in ("0.weight", "1.weight"))
    return Ref("SGD", f"SGD {number}"), frozenset((first, second)), first


def sweep(detector: Any, trials: int, steps: int = 20) -> list[Any]:
    """Train one model after the other, each with a parameter that never has a gradient of a use."""
    found: list[Any] = []
    lacking = "zero" if isinstance(detector, always_zero.Detector) else "with_gradient"
    for number in range(trials):
        optimizer, held, first = made(number)
        for step in range(steps):
            update = number * steps + step
            event = stepped(update, optimizer, held, **{lacking: frozenset((first,))})
            evidence = detector.observe(event)
            found += evidence if isinstance(evidence, list) else []
    return found


@pytest.mark.parametrize("family", [always_zero, never_received])
def test_little_is_kept_of_many(family):
    detector = family.Detector()
    sweep(detector, 300)
    kept = [len(each) for each in vars(detector).values() if hasattr(each, "__len__")]
    assert sum(kept) <= 12


@pytest.mark.parametrize("family", [always_zero, never_received])
def test_what_has_gone_is_told_all_the_same(family):
    detector = family.Detector()
    found = sweep(detector, 10)
    assert {each.dedup_key.name for each in found} >= {f"SGD {number}" for number in range(6)}
    found += detector.observe(WatchEnded(update=10_000, backward_count=10_000))
    assert len(found) == 10
    assert detector.inconclusive() == ""


def test_a_gradient_from_an_optimizer_that_has_gone_counts():
    detector = never_received.Detector()
    early, held, first = made(0)
    (second,) = held - {first}
    for update in range(20):
        detector.observe(stepped(update, early, held, with_gradient=frozenset((first,))))
    del early
    late, *_ = made(1)
    for update in range(20, 200):
        found = detector.observe(stepped(update, late, held, with_gradient=frozenset((second,))))
        assert not found
