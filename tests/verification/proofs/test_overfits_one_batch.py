"""Models that can overfit one batch, and models that cannot."""

import functools

import torch
from torch import nn

NAME = "overfits-one-batch"
FAST = functools.partial(torch.optim.Adam, lr=0.05)


def test_a_model_that_can(holds, classes, net):
    evidence = holds(NAME, model=net(dropout=0.5), loss=nn.CrossEntropyLoss(), batch=classes, optimizer=FAST)
    curve = evidence.charts[0]
    assert curve.lines["loss"][-1] <= curve.level <= 0.1001 * curve.lines["loss"][0]


def test_an_input_that_does_not_arrive_is_found(broken, classes):
    class Blind(nn.Linear):
        def forward(self, x):
            return super().forward(x * 0)

    evidence = broken(
        NAME, model=Blind(8, 3), loss=nn.CrossEntropyLoss(), batch=classes, optimizer=FAST, options={"updates": 200}
    )
    assert "the input seems not to reach the output" in evidence.message
    assert evidence.numbers["updates"] == 200


def test_a_gradient_that_does_not_arrive_is_found(broken, classes, net):
    class Cut(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.scale = net(), nn.Parameter(torch.ones(()))

        def forward(self, x):
            return self.inner(x).detach() * self.scale

    broken(NAME, model=Cut(), loss=nn.CrossEntropyLoss(), batch=classes, optimizer=FAST, options={"updates": 100})


def test_numbers_are_learnt_too(holds, broken):
    torch.manual_seed(0)
    x = torch.randn(16, 4)
    batch = (x, x.sum(1, keepdim=True))
    holds(NAME, model=nn.Linear(4, 1), loss=nn.MSELoss(), batch=batch, optimizer=FAST)
    mixed = (x, torch.randn(16))  # [16, 1] against [16]: the classic broadcast

    def loss(model, batch):
        return ((model(batch[0]) - batch[1]) ** 2).mean()

    broken(NAME, model=nn.Linear(4, 1), loss=loss, batch=mixed, optimizer=FAST, options={"updates": 100})


def test_label_smoothing_has_a_floor(holds, classes, net):
    holds(NAME, model=net(), loss=nn.CrossEntropyLoss(label_smoothing=0.3), batch=classes, optimizer=FAST)


def test_a_floor_can_be_given(holds, classes, net):
    def lifted(model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1]) + 5

    holds(NAME, model=net(), loss=lifted, batch=classes, optimizer=FAST, floor=5.0)


def test_no_more_time_is_no_verdict(prove, classes, net):
    evidence = prove(NAME, model=net(), loss=nn.CrossEntropyLoss(), batch=classes, seconds=0.0)
    assert evidence.verdict == "not judged"
    assert not evidence.ok


def test_a_model_too_small_for_the_batch_learns_a_few_samples(holds):
    torch.manual_seed(0)
    narrow = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 8))
    batch = torch.randn(32, 8)
    evidence = holds(
        NAME, model=narrow, loss=lambda model, x: ((model(x) - x) ** 2).mean(), batch=batch, optimizer=FAST
    )
    assert "32 samples" in evidence.notes[0]


def test_an_optimizer_that_is_only_slow_is_remarked(holds, classes, net):
    slow = functools.partial(torch.optim.SGD, lr=1e-3)
    evidence = holds(
        NAME, model=net(), loss=nn.CrossEntropyLoss(), batch=classes, optimizer=slow, options={"updates": 150}
    )
    assert "with Adam at a learning rate of 0.01" in evidence.notes[0]


def test_a_loss_whose_floor_is_not_known_is_no_alarm(not_applicable, broken):
    class Encoder(nn.Module):
        """A variational autoencoder, whose minimal loss is well above zero."""

        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.down, self.up = nn.Linear(8, 4), nn.Linear(2, 8)

        def forward(self, x):
            mean, log = self.down(x).chunk(2, 1)
            return self.up(mean + torch.randn_like(mean) * (log / 2).exp()), mean, log

    def loss(model, x):
        back, mean, log = model(x)
        return ((back - x) ** 2).sum(1).mean() + 0.5 * (mean**2 + log.exp() - log - 1).sum(1).mean()

    torch.manual_seed(0)
    batch = 2 * torch.randn(16, 8)
    assert "floor=" in not_applicable(NAME, model=Encoder(), loss=loss, batch=batch, optimizer=FAST).message

    class Blind(Encoder):
        def forward(self, x):
            return super().forward(x * 0)

    broken(NAME, model=Blind(), loss=loss, batch=batch, optimizer=FAST)
