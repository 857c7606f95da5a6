"""Handwritten gradients: correct ones, wrong ones, and deliberate ones."""

import torch
from torch import nn

NAME = "custom-functions"


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * ctx.saved_tensors[0] * grad


class Halved(Squared):
    @staticmethod
    def backward(ctx, grad):
        return ctx.saved_tensors[0] * grad


class Scaled(torch.autograd.Function):
    """A Function with two inputs and `setup_context`, with or without the gradient of the second input."""

    whole = True

    @staticmethod
    def forward(x, weight):
        return x * weight

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad * weight, (grad * x).sum(0) if Scaled.whole else torch.zeros_like(weight)


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        return grad


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -grad


rounded = Rounded.apply  # stored before the proof replaces `forward`, as in many programs


class Model(nn.Module):
    def __init__(self, *functions):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.weight, self.head = nn.Linear(8, 8), nn.Parameter(torch.rand(8) + 0.5), nn.Linear(8, 3)
        self.functions = functions

    def forward(self, x):
        h = self.first(x)
        for function in self.functions:
            h = Scaled.apply(h, self.weight) if function is Scaled else function(h)
        return self.head(h)


def subject(classes, *functions):
    return {"model": Model(*functions), "loss": nn.CrossEntropyLoss(), "batch": classes}


def test_a_right_gradient_holds(holds, classes):
    kept = Squared.apply
    evidence = holds(NAME, **subject(classes, kept, Scaled))
    assert "Squared" in evidence.message
    assert "Scaled" in evidence.message


def test_a_missing_factor_is_found_with_its_size(broken, classes):
    evidence = broken(NAME, **subject(classes, Halved.apply))
    assert evidence.cause == "Halved"
    assert "0.500 times the derivative" in evidence.message


def test_a_gradient_that_is_left_out_is_found(broken, classes, monkeypatch):
    monkeypatch.setattr(Scaled, "whole", False)
    evidence = broken(NAME, **subject(classes, Squared.apply, Scaled))
    assert evidence.cause == "Scaled"
    assert "input 1" in evidence.message


def test_decisions_are_told_and_not_judged(holds, not_applicable, classes):
    evidence = holds(NAME, **subject(classes, Squared.apply, rounded, Reversed.apply))
    assert any("Rounded" in remark for remark in evidence.notes)
    assert any("Reversed" in remark for remark in evidence.notes)
    assert "staircase" in not_applicable(NAME, **subject(classes, rounded)).message


def test_the_functions_are_as_they_were(holds, classes):
    before = Squared.__dict__["forward"]
    holds(NAME, **subject(classes, Squared.apply))
    assert Squared.__dict__["forward"] is before
    assert "forward" not in Halved.__dict__
    torch.manual_seed(0)
    assert Squared.apply(torch.tensor(3.0)) == 9


def test_without_any_it_does_not_apply(not_applicable, classes, net):
    not_applicable(NAME, model=net(), loss=nn.CrossEntropyLoss(), batch=classes)
