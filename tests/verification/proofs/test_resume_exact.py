"""Checkpoints that contain all state, and checkpoints that do not."""

import functools

import torch
from torch import nn

NAME = "resume-exact"
MOMENTUM = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)


class Averaged(nn.Module):
    """Updates a running mean in a persistent buffer, in a non-persistent buffer, or in an attribute."""

    def __init__(self, how):
        super().__init__()
        torch.manual_seed(0)
        self.head, self.how = nn.Linear(8, 3), how
        if how == "attribute":
            self.mean = torch.zeros(8)
        else:
            self.register_buffer("mean", torch.zeros(8), persistent=how == "kept")

    def forward(self, x):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0).detach()
        return self.head(x - self.mean)


def test_state_dicts_of_torch_are_enough(holds, classes, net):
    for optimizer in (MOMENTUM, torch.optim.AdamW, torch.optim.RMSprop):
        model = net(norm=nn.BatchNorm1d(16), dropout=0.4)
        holds(NAME, model=model, loss=nn.CrossEntropyLoss(), batch=classes, optimizer=optimizer)


def test_a_buffer_that_is_kept_holds(holds, classes):
    holds(NAME, model=Averaged("kept"), loss=nn.CrossEntropyLoss(), batch=classes, optimizer=MOMENTUM)


def test_a_buffer_that_is_not_persistent_is_found(broken, classes):
    evidence = broken(NAME, model=Averaged("lost"), loss=nn.CrossEntropyLoss(), batch=classes, optimizer=MOMENTUM)
    assert "omits the non-persistent buffers mean" in evidence.message


def test_an_attribute_that_counts_is_found(broken, classes):
    broken(NAME, model=Averaged("attribute"), loss=nn.CrossEntropyLoss(), batch=classes, optimizer=MOMENTUM)


def test_a_checkpoint_without_the_optimizer_is_found(broken, holds, classes, net):
    subject = {
        "model": net(),
        "loss": nn.CrossEntropyLoss(),
        "batch": classes,
        "save": lambda model, _: {"weights": model.state_dict()},
        "load": lambda model, _, saved: model.load_state_dict(saved["weights"]),
    }
    broken(NAME, **subject, optimizer=MOMENTUM)
    holds(NAME, **subject, optimizer=functools.partial(torch.optim.SGD, lr=0.1))  # has no state


def test_training_that_is_not_repeatable_is_not_judged(prove, classes):
    class Secret(nn.Linear):
        source = torch.Generator().manual_seed(0)

        def forward(self, x):
            return super().forward(x + torch.rand(x.shape, generator=self.source))

    evidence = prove(NAME, model=Secret(8, 3), loss=nn.CrossEntropyLoss(), batch=classes)
    assert evidence.verdict == "not judged"
