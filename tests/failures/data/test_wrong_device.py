"""DAT006: told by devices; the meta device stands for an accelerator, which these tests do not have."""

from types import SimpleNamespace

import torch

from trueloop.failures.data.wrong_device import Detector
from trueloop.tracing.events import BackwardEnded, BackwardLosses, ModelCalled, Ref

WEIGHTS = frozenset({Ref("Parameter", "weight")})


def hear(detector, *, output="meta", targets="cpu", received=WEIGHTS, times=5, unread=""):
    """Call and differentiate a model several times, and return what was found."""
    found = []
    loss = SimpleNamespace(targets=None if unread else torch.empty(4, device=targets), unread=unread)
    for _ in range(times):
        for kind, fields in (
            (ModelCalled, {"output": torch.empty(4, device=output), "parameters": WEIGHTS}),
            (BackwardLosses, {"losses": (loss,), "place": None}),
            (BackwardEnded, {"received": received}),
        ):
            event = object.__new__(kind)
            for name, value in fields.items():
                object.__setattr__(event, name, value)
            found.append(detector.observe(event))
    return [evidence for evidence in found if evidence is not None]


def test_a_loss_on_the_processor_is_told_once():
    detector = Detector()
    found = hear(detector)
    assert len(found) == 1
    assert "meta" in found[0].message
    assert not detector.inconclusive()


def test_a_loss_beside_the_output_is_not():
    assert not hear(Detector(), targets="meta")
    assert not hear(Detector(), output="cpu")
    assert Detector().inconclusive()


def test_a_loss_of_another_model_is_not():
    assert not hear(Detector(), received=frozenset({Ref("Parameter", "other")}))


def test_a_single_one_is_not():
    assert not hear(Detector(), times=2)


def test_targets_that_cannot_be_read_are_not_judged():
    detector = Detector()
    assert not hear(detector, unread="nobody tells")
    assert detector.inconclusive() == "nobody tells"
