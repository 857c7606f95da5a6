"""Parameters that do not change, for different reasons, and parameters that only seem not to change."""

import functools

import torch
from torch import nn

NAME = "every-parameter-moves"


class Branched(nn.Module):
    """A model with a second branch that is not called, detached, dead or used."""

    def __init__(self, how):
        super().__init__()
        torch.manual_seed(0)
        self.main, self.side, self.how = nn.Linear(8, 3), nn.Linear(8, 3), how

    def forward(self, x):
        if self.how == "never called":
            return self.main(x)
        if self.how == "detached":
            return self.main(x) + self.side(x).detach()
        if self.how == "dead":
            return self.main(x) + torch.relu(self.side(x) - 1e6)
        return self.main(x) + self.side(x)


def verdict(prove, classes, how, **more):
    return prove(NAME, model=Branched(how), loss=nn.CrossEntropyLoss(), batch=classes, **more)


def test_a_model_that_is_used_holds(prove, holds, classes, net, decoder, tokens, token_loss):
    assert verdict(prove, classes, "used")
    holds(NAME, model=net(norm=nn.BatchNorm1d(16), dropout=0.3), loss=nn.CrossEntropyLoss(), batch=classes)
    evidence = holds(NAME, model=decoder(tied=True), loss=token_loss, batch=tokens)  # one tensor with two names
    assert not evidence.notes


def test_reasons_are_told(broken, classes):
    for how, expected in {
        "never called": "side.weight (never received a gradient)",
        "detached": "side.weight (never received a gradient)",
        "dead": "side.weight (its gradient is exactly 0)",
    }.items():
        evidence = broken(NAME, model=Branched(how), loss=nn.CrossEntropyLoss(), batch=classes)
        assert expected in evidence.message, how
        assert evidence.cause == "side.weight"
        assert evidence.numbers == {"unmoved": 2, "trainable": 4}


def test_decay_alone_is_not_learning(broken, classes):
    decaying = functools.partial(torch.optim.AdamW, lr=0.1, weight_decay=0.1)
    evidence = broken(NAME, model=Branched("dead"), loss=nn.CrossEntropyLoss(), batch=classes, optimizer=decaying)
    assert "only weight decay changes it" in evidence.message


def test_what_the_optimizer_does_not_hold_is_told(broken, classes):
    evidence = broken(
        NAME,
        model=Branched("used"),
        loss=nn.CrossEntropyLoss(),
        batch=classes,
        optimizer=lambda model: torch.optim.SGD(model.main.parameters(), lr=0.1),
    )
    assert "side.weight (received a gradient, but the optimizer does not hold it)" in evidence.message


def test_a_rate_of_zero_is_told(broken, classes, net):
    still = functools.partial(torch.optim.SGD, lr=0.0)
    evidence = broken(NAME, model=net(), loss=nn.CrossEntropyLoss(), batch=classes, optimizer=still)
    assert "the learning rate is 0" in evidence.message


def test_what_begins_late_is_no_alarm(holds, classes):
    class LowRank(nn.Module):
        def __init__(self):
            super().__init__()
            self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 3, bias=False)
            nn.init.zeros_(self.up.weight)

        def forward(self, x):
            return self.up(self.down(x))

    evidence = holds(NAME, model=LowRank(), loss=nn.CrossEntropyLoss(), batch=classes)
    assert "down.weight" in evidence.notes[0]


def test_rows_that_are_not_in_the_batch_are_no_alarm(holds):
    model = nn.Sequential(nn.EmbeddingBag(1000, 4), nn.Linear(4, 3))
    holds(
        NAME, model=model, loss=nn.CrossEntropyLoss(), batch=(torch.arange(12).view(4, 3), torch.tensor([0, 1, 2, 0]))
    )


def test_frozen_ones_do_not_count(holds, not_applicable, classes):
    model = Branched("never called")
    model.side.requires_grad_(False)
    holds(NAME, model=model, loss=nn.CrossEntropyLoss(), batch=classes)
    not_applicable(NAME, model=model.requires_grad_(False), loss=nn.CrossEntropyLoss(), batch=classes)


def test_steps_lost_in_rounding_are_told(broken, classes):
    model = nn.Sequential(nn.Linear(8, 3), nn.LayerNorm(3)).bfloat16()
    batch = classes[0].bfloat16(), classes[1]
    evidence = broken(NAME, model=model, loss=nn.CrossEntropyLoss(), batch=batch)
    assert evidence.cause == "1.weight"
    assert "lost in the rounding of bfloat16" in evidence.message


def test_sparse_gradients(holds):
    holds(
        NAME,
        model=nn.EmbeddingBag(1000, 3, sparse=True),
        loss=nn.CrossEntropyLoss(),
        batch=(torch.arange(12).view(4, 3), torch.tensor([0, 1, 2, 0])),
        optimizer=torch.optim.SparseAdam,
    )


class Listed(nn.Module):
    """Keeps layers in a plain list, in a dict, or in a list that it never uses."""

    def __init__(self, how):
        super().__init__()
        torch.manual_seed(0)
        made = nn.Linear(8, 8)
        self.hidden = {"list": [made], "dict": {"first": made}, "teacher": [made], "registered": nn.ModuleList([made])}[
            how
        ]
        self.head, self.how = nn.Linear(8, 3), how

    def forward(self, x):
        layer = self.hidden["first"] if self.how == "dict" else self.hidden[0]
        if self.how == "teacher":
            with torch.no_grad():
                hint = layer(x)
            return self.head(x + hint)
        return self.head(layer(x))


def test_layers_in_plain_lists_are_found(broken, holds, classes):
    for how, place in {"list": "hidden[0].weight", "dict": "hidden['first'].weight"}.items():
        evidence = broken(NAME, model=Listed(how), loss=nn.CrossEntropyLoss(), batch=classes)
        assert evidence.cause == place
        assert evidence.numbers == {"unregistered": 2, "trainable": 2}
    for how in ("registered", "teacher"):
        holds(NAME, model=Listed(how), loss=nn.CrossEntropyLoss(), batch=classes)
