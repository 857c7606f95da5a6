"""DAT006: the loss is computed on the CPU; the meta device replaces the accelerator, which these tests lack."""

from types import SimpleNamespace

import torch

from trueloop.failures.data.wrong_device import Detector
from trueloop.tracing.events import BackwardEnded, BackwardLosses, ModelCalled, Ref

WEIGHTS = frozenset({Ref("Parameter", "weight")})


def run_backwards(detector, *, output="meta", targets="cpu", reached=WEIGHTS, times=5, unreadable=""):
    """Call and differentiate a model several times, and return what was found."""
    found = []
    loss = SimpleNamespace(targets=None if unreadable else torch.empty(4, device=targets), unreadable_reason=unreadable)
    for _ in range(times):
        for kind, fields in (
            (ModelCalled, {"output": torch.empty(4, device=output), "parameters": WEIGHTS}),
            (BackwardLosses, {"losses": (loss,), "location": None}),
            (BackwardEnded, {"reached_parameters": reached}),
        ):
            event = object.__new__(kind)
            for name, value in fields.items():
                object.__setattr__(event, name, value)
            found.append(getattr(detector, kind.HANDLER)(event))
    return [evidence for evidence in found if evidence is not None]


def test_a_loss_on_the_cpu_is_reported_once():
    detector = Detector()
    found = run_backwards(detector)
    assert len(found) == 1
    assert "meta" in found[0].message
    assert not detector.inconclusive()


def test_a_loss_on_the_device_of_the_output_is_fine():
    assert not run_backwards(Detector(), targets="meta")
    assert not run_backwards(Detector(), output="cpu")
    assert Detector().inconclusive()


def test_a_loss_of_another_model_is_fine():
    assert not run_backwards(Detector(), reached=frozenset({Ref("Parameter", "other")}))


def test_two_backwards_are_not_enough():
    assert not run_backwards(Detector(), times=2)


def test_unreadable_targets_are_inconclusive():
    detector = Detector()
    assert not run_backwards(detector, unreadable="no value")
    assert detector.inconclusive() == "no value"
