"""Step functions that accumulate exactly, and step functions that do not."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

NAME = "accumulation-exact"


def exact(model, optimizer, batches):
    optimizer.zero_grad()
    count = sum(len(y) for _, y in batches)
    for x, y in batches:
        (F.cross_entropy(model(x), y, reduction="sum") / count).backward()
    optimizer.step()


def undivided(model, optimizer, batches):
    optimizer.zero_grad()
    for x, y in batches:
        F.cross_entropy(model(x), y).backward()
    optimizer.step()


def by_number(model, optimizer, batches):
    optimizer.zero_grad()
    for x, y in batches:
        (F.cross_entropy(model(x), y) / len(batches)).backward()
    optimizer.step()


def last_only(model, optimizer, batches):
    for x, y in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
    optimizer.step()


class Foreign:
    """A trainer of another library, with its own optimizer."""

    def __init__(self, model, *, scaled):
        self.model, self.scaled = model, scaled
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def fit(self, batches):
        self.optimizer.zero_grad()
        for x, y in batches:
            share = len(y) / sum(len(y) for _, y in batches) if self.scaled else 1.0
            (F.cross_entropy(self.model(x), y) * share).backward()
        self.optimizer.step()


@pytest.fixture
def subject(classes, net):
    return {"model": net(dropout=0.3), "loss": nn.CrossEntropyLoss(), "batch": classes}


def test_a_sum_divided_once_holds(holds, subject):
    evidence = holds(NAME, **subject, step=exact)
    assert evidence.numbers["equal"] < 1e-12
    assert evidence.numbers["short_last"] < 1e-12


def test_what_is_not_divided_is_found_with_its_factor(broken, subject):
    evidence = broken(NAME, **subject, step=undivided)
    assert evidence.numbers["times"] == pytest.approx(4, rel=1e-6)
    assert "its norm is 4.00 times" in evidence.message


def test_a_mean_of_means_is_found_by_the_short_last_one(broken, subject):
    evidence = broken(NAME, **subject, step=by_number)
    assert evidence.cause == "short last micro-batch"
    assert evidence.numbers["equal"] < 1e-12
    assert "5 + 5 + 5 + 1" in evidence.message


def test_clearing_in_between_is_found(broken, subject):
    assert broken(NAME, **subject, step=last_only).cause == "equal micro-batches"


def test_somebody_elses_trainer(holds, broken, subject):
    holds(NAME, **subject, step=lambda model, _, batches: Foreign(model, scaled=True).fit(batches))
    broken(NAME, **subject, step=lambda model, _, batches: Foreign(model, scaled=False).fit(batches))


def test_batchnorm_is_held_still_and_told(holds, classes, net):
    model = net(norm=nn.BatchNorm1d(16))
    evidence = holds(NAME, model=model, loss=nn.CrossEntropyLoss(), batch=classes, step=exact)
    assert "no training loop can avoid" in evidence.notes[0]


def test_a_model_that_insists_on_single_precision(holds, broken, classes):
    class Single(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.weight = nn.Parameter(torch.randn(8, 3))

        def forward(self, x):
            return torch.mm(x.float(), self.weight.float() if self.weight.dtype is torch.float32 else self.weight)

    subject = {"model": Single(), "loss": nn.CrossEntropyLoss(), "batch": classes}
    holds(NAME, **subject, step=exact)
    broken(NAME, **subject, step=undivided)


def test_a_random_step_is_not_judged(prove, subject):
    def noisy(model, optimizer, batches):
        exact(model, optimizer, batches)
        with torch.no_grad():
            for parameter in model.parameters():
                own = torch.Generator().manual_seed(noisy.calls)
                parameter.add_(torch.randn(parameter.shape, generator=own), alpha=0.01)
        noisy.calls += 1

    noisy.calls = 0
    assert prove(NAME, **subject, step=noisy).verdict == "not judged"


def test_a_step_that_trains_another_model_is_told_and_put_back(prove, classes, net):
    mine = net()
    optimizer = torch.optim.SGD(mine.parameters(), lr=0.1)
    before = {name: tensor.clone() for name, tensor in mine.state_dict().items()}

    def step(_model, _optimizer, batches):
        exact(mine, optimizer, batches)

    evidence = prove(NAME, model=mine, loss=nn.CrossEntropyLoss(), batch=classes, step=step)
    assert evidence.verdict == "not judged"
    assert "changed the original model" in evidence.message
    assert all(torch.equal(before[name], tensor) for name, tensor in mine.state_dict().items())
    assert all(parameter.grad is None for parameter in mine.parameters())


def test_without_a_step_it_does_not_apply(not_applicable, subject):
    assert "step(model, optimizer, batches)" in not_applicable(NAME, **subject).message


def test_a_step_may_speak_of_its_groups(holds, subject):
    def warm(model, optimizer, batches):
        optimizer.param_groups[1]["lr"] *= 0.5
        exact(model, optimizer, batches)

    def grouped(model):
        return torch.optim.AdamW([{"params": model[0].parameters()}, {"params": model[3].parameters(), "lr": 0.1}])

    holds(NAME, **subject, step=warm, optimizer=grouped)
