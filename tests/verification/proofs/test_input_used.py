"""Inputs that never reach the output, and inputs that only seem not to reach it."""

import torch
from torch import nn

NAME = "input-used"


class Ignored(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.head, self.how = nn.Linear(8, 3), how

    def forward(self, x):
        return self.head({"zero": x * 0.0, "ones": torch.ones_like(x), "used": x}[self.how])


class Two(nn.Module):
    def __init__(self, *, both):
        super().__init__()
        self.a, self.b, self.both = nn.Linear(8, 3), nn.Linear(4, 3), both

    def forward(self, x, extra):
        return self.a(x) + (self.b(extra) if self.both else 0)


def test_an_input_multiplied_by_zero_is_found(broken, classes):
    assert "the input" in broken(NAME, model=Ignored("zero"), loss=nn.CrossEntropyLoss(), batch=classes).message


def test_an_input_that_is_overwritten_is_found(broken, classes):
    broken(NAME, model=Ignored("ones"), loss=nn.CrossEntropyLoss(), batch=classes)


def test_a_used_one_holds(holds, classes, decoder, tokens, token_loss):
    evidence = holds(NAME, model=Ignored("used"), loss=nn.CrossEntropyLoss(), batch=classes)
    assert not evidence.notes
    holds(NAME, model=decoder(), loss=token_loss, batch=tokens)


def test_one_of_two_is_named(broken, holds, classes):
    batch = ((classes[0], torch.randn(16, 4)), classes[1])
    holds(NAME, model=Two(both=True), loss=nn.CrossEntropyLoss(), batch=batch)
    evidence = broken(NAME, model=Two(both=False), loss=nn.CrossEntropyLoss(), batch=batch)
    assert evidence.cause == "input[1]"


def test_a_last_layer_of_zeros_is_no_alarm(holds, classes):
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3))
    nn.init.zeros_(model[1].weight)
    holds(NAME, model=model, loss=nn.CrossEntropyLoss(), batch=classes)
    assert not model[1].weight.any()  # the user's batch is unchanged


def test_a_feature_without_influence_is_remarked(holds, classes):
    class Cut(nn.Linear):
        def forward(self, x):
            return super().forward(torch.cat([x[:, :7], torch.zeros_like(x[:, 7:])], 1))

    evidence = holds(NAME, model=Cut(8, 3), loss=nn.CrossEntropyLoss(), batch=classes)
    assert evidence.notes == ("1 feature of 8 had no gradient in this batch: [7].",)


def test_an_input_behind_no_grad_is_used_all_the_same(holds, classes):
    class Encoded(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x):
            with torch.no_grad():
                code = self.encoder(x)
            return self.head(code)

    assert not holds(NAME, model=Encoded(), loss=nn.CrossEntropyLoss(), batch=classes).notes
