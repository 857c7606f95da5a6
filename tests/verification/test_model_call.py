"""A loss is called, and its call of the model is captured."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trueloop.core.errors import InvalidConfig, InvalidData
from trueloop.verification.evidence import NotApplicable
from trueloop.verification.model_call import capture_call, mean_loss
from trueloop.verification.proof_target import ProofTarget


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(),
        F.cross_entropy,
        lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        lambda model, batch: (F.cross_entropy(model(batch[0]), batch[1], reduction="sum"), len(batch[1])),
        lambda model, batch: {"loss": F.cross_entropy(model(batch[0]), batch[1])},
        lambda model, batch: SimpleNamespace(loss=F.cross_entropy(model(batch[0]), batch[1])),
    ],
)
def test_every_form_of_a_loss_is_one_mean(net, classes, loss):
    model = net()
    torch.testing.assert_close(mean_loss(loss, model, classes), F.cross_entropy(model(classes[0]), classes[1]))


def test_what_is_no_number_is_refused(net, classes):
    with pytest.raises(InvalidConfig, match=r"a tensor of shape \[16\]"):
        mean_loss(nn.CrossEntropyLoss(reduction="none"), net(), classes)
    with pytest.raises(InvalidConfig, match="NoneType"):
        mean_loss(lambda _model, _batch: None, net(), classes)
    with pytest.raises(InvalidData, match="needs batches"):
        mean_loss(nn.CrossEntropyLoss(), net(), classes[0])
    with pytest.raises(NotApplicable):
        mean_loss(None, net(), classes)


def test_calls_are_caught(net, classes):
    model = net()
    for loss in (nn.CrossEntropyLoss(), lambda model, batch: model(input=batch[0]).sum(), None):
        subject = ProofTarget(model=model, loss=loss)
        call = capture_call(subject, model, classes if loss is not None else classes[0])
        [tensor] = [*call.args, *call.kwargs.values()]
        assert tensor is classes[0]
    given = ProofTarget(model=model, inputs=lambda batch: {"input": batch[0]})
    assert capture_call(given, model, classes).kwargs["input"] is classes[0]
    assert not model._forward_pre_hooks


def test_a_loss_that_goes_around_the_call_is_told(net, classes):
    subject = ProofTarget(model=net(), loss=lambda model, batch: model.forward(batch[0]).sum())
    with pytest.raises(NotApplicable, match="does not call model"):
        capture_call(subject, subject.model, classes)
