"""Running a batch again finds the origin of a non-finite value and changes no state of the program."""

from __future__ import annotations

import contextlib
import functools
import gc
import pickle
import random
import sys
import threading
import weakref
from collections import deque

import numpy as np
import pytest
import torch
from torch import nn

from trueloop.sanitizer.watch import Watch
from trueloop.tracing.nonfinite.replay import Replay, record_call, record_output, replay


class Net(nn.Module):
    """A model with dropout, BatchNorm, a mask, its own state, and a logarithm."""

    def __init__(self, bad: bool = True) -> None:
        super().__init__()
        self.bad, self.calls, self.kept = bad, 0, []
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.5)
        self.inner = nn.ModuleList([Part(), Part()])

    def forward(self, x):
        self.calls += 1
        self.kept.append(self.calls)
        print("called")  # noqa: T201 - programs print in forward, too
        random.random()
        mask = torch.full((8,), float("-inf"))
        mask[:4] = 0
        h = self.drop(self.norm(self.first(x)))
        h = h * (h + mask).softmax(-1)
        self.last = h
        return self.inner[1](h, self.bad) + self.inner[0](h, False)


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, h, bad):
        return self.linear((h * 0).log() if bad else h)


def state_of(net):
    return (
        net.calls, list(net.kept), net.last, torch.get_rng_state().tolist(), random.getstate(),
        [buffer.clone() for buffer in net.buffers()], [t._version for t in (*net.buffers(), *net.parameters())],
        [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in net.modules()],
    )  # fmt: skip


def test_the_operation_and_module_are_named_without_side_effects(capsys):
    torch.manual_seed(0)
    net, x = Net(), torch.randn(6, 4)
    gradients = net.norm.register_full_backward_hook(lambda *_: None)
    call = record_call(net, (x,), {}, 0)
    loss = net(x).sum()
    before, printed = state_of(net), capsys.readouterr().out
    found = replay([call]).origin
    assert found is not None
    assert (found.operation, found.module) == ("log", "inner.1 (Part)")
    assert "48 of 48 zero" in found.inputs
    line = found.location.source_location
    assert line.path == __file__
    assert line.function == "Part.forward"
    after = state_of(net)
    assert after[2] is before[2]
    assert all(torch.equal(a, b) for a, b in zip(after[5], before[5], strict=True))
    assert (*after[:2], *after[3:5], *after[6:]) == (*before[:2], *before[3:5], *before[6:])
    assert printed == "called\n"
    assert capsys.readouterr().out == ""
    assert gradients.id in net.norm._backward_hooks
    loss.backward()  # the graph is as usable as before


def test_a_mask_has_no_origin():
    net, x = Net(bad=False), torch.randn(6, 4)
    call = record_call(net, (x,), {}, 0)
    net(x)
    assert replay([call]).origin is None


def test_random_numbers_are_replayed():
    class Rare(nn.Module):
        def forward(self, x):
            return x / nn.functional.dropout(torch.ones(1), 0.5)

    module, x = Rare(), torch.ones(1)
    for seed in range(8):
        torch.manual_seed(seed)
        call = record_call(module, (x,), {}, 0)
        assert (replay([call]).origin is not None) == bool(module(x).isinf())


def test_a_fully_masked_row():
    class Attention(nn.Module):
        def forward(self, x, mask):
            return x.masked_fill(mask, float("-inf")).softmax(-1)

    mask = torch.tensor([[True, True], [False, True]])
    call = record_call(Attention(), (torch.ones(2, 2),), {"mask": mask}, 0)
    assert call.module() is None, "nothing is kept alive"
    attention, x = Attention(), torch.ones(2, 2)
    call = record_call(attention, (x,), {"mask": mask}, 0)
    assert replay([call]).origin.operation == "softmax"


def test_the_batch_itself():
    net, x = Net(), torch.ones(6, 4)
    x[2, 3] = float("nan")
    call = record_call(net, (x,), {}, 0)
    found = replay([call]).origin
    assert found.operation == ""
    assert "argument 1 of Net" in found.inputs
    assert "1 of 24 not finite" in found.inputs


def test_weights_that_were_nonfinite_before():
    net, x = Net(bad=False), torch.ones(6, 4)
    with torch.no_grad():
        net.first.bias.fill_(float("nan"))
    assert "first.bias" in replay([record_call(net, (x,), {}, 0)]).origin.inputs


def test_a_loss_after_a_finite_model_gets_the_arguments_of_the_graph():
    class Likelihood(nn.Module):
        def forward(self, p):
            return -p.log().mean()

    model, loss, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), Likelihood(), torch.randn(6, 4)
    first = record_call(model, (x,), {}, 0)
    out = model(x) * 0
    second = record_call(loss, (out,), {}, 0)
    result = loss(out)
    del out
    found = replay([first, second]).origin
    assert (found.module, found.operation) == ("Likelihood", "log")
    assert result.isinf()


def test_a_freed_argument_is_recomputed_by_its_call():
    model, loss, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), Log(), torch.randn(6, 4)
    for changed in (False, True):
        first = record_call(model, (x,), {}, 0)
        out = model(x)
        record_output(first, out)
        if changed:
            out = out.detach().add_(1)
        second = record_call(loss, (out,), {}, 0)
        del out
        shown = replay([first, second])
        assert (shown.origin is None) == changed
        assert changed or shown.origin.operation == "log"


def test_under_autocast():
    class Wide(nn.Module):
        def forward(self, x):
            return torch.mm(x, x) * 300

    module, x = Wide(), torch.full((8, 8), 60.0)
    with torch.autocast("cpu", dtype=torch.float16):
        call = record_call(module, (x,), {}, 0)
    assert replay([call]).origin.operation == "mul"


def test_a_compiled_model_is_replayed_eagerly():
    net, x = torch.compile(nn.Sequential(nn.Linear(4, 4), Log()), backend="eager"), torch.randn(2, 4)
    call = record_call(net, (x,), {}, 0)
    assert replay([call]).origin.operation == "log"


class Log(nn.Module):
    def forward(self, x):
        return (x * 0).log()


class Failing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def forward(self, x):
        self.count += 1
        raise RuntimeError("no second time")


@pytest.mark.parametrize("what", ["changed", "gone", "a hook for all", "a hook of its own", "a profiler", "processes"])
def test_changed_or_observable_calls_are_not_replayed(what, monkeypatch):
    module, x = nn.Sequential(nn.Linear(4, 4), Log()), torch.randn(2, 4)
    call = record_call(module, (x,), {}, 0)
    assert replay([call]).origin is not None
    with contextlib.ExitStack() as stack:
        match what:
            case "changed":
                x.add_(1)
            case "gone":
                del x
            case "a hook for all":
                stack.callback(nn.modules.module.register_module_forward_hook(lambda *_: None).remove)
            case "a hook of its own":
                module[0].register_forward_hook(lambda *_: pytest.fail("it was called"))
            case "a profiler":
                stack.enter_context(torch.autograd.profiler.profile())
            case "processes":
                monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        assert replay([call]) == Replay(None, finite=False)


def test_a_failing_replay_is_reported_and_restored():
    module, x = Failing(), torch.randn(2, 4)
    drawn, own, called = torch.get_rng_state(), vars(module), nn.Module.__call__
    with pytest.raises(RuntimeError, match="no second time"):
        replay([record_call(module, (x,), {}, 0)])
    assert vars(module) is own
    assert module.count == 0
    assert not module._forward_hooks
    assert nn.Module.__call__ is called
    assert torch.equal(torch.get_rng_state(), drawn)


class Bag:
    """A plain object, such as a configuration or a counter."""

    def __init__(self) -> None:
        self.count, self.items, self.inner = 0, [1], {"a": deque([1], maxlen=3)}


class Stateful(nn.Module):
    """Changes everything it holds, of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.table = nn.Embedding(4, 4, max_norm=0.1)  # shortens its rows when they are looked up
        self.bag, self.numbers = Bag(), np.zeros(3)
        self.dice = (random.Random(0), np.random.default_rng(0), torch.Generator().manual_seed(0))
        self.history = nn.Parameter(torch.zeros(2), requires_grad=False)
        self.activation = functools.partial(nn.functional.softmax, dim=-1)
        self.register_buffer("total", torch.zeros(()))
        self.shared = self.bag.items

    def forward(self, x):
        self.bag.count += 1
        self.bag.items.append(2)
        self.bag.inner["a"].append(3)
        self.new = self.numbers
        self.numbers += 1
        dice, array, torchs = self.dice
        dice.random(), array.random(), torch.rand(1, generator=torchs), np.random.rand()
        self.total += x.sum().detach()
        with torch.no_grad():
            self.linear.weight.mul_(1.5)
            self.history[0] += 1
        assert self.shared is self.bag.items
        h = self.activation(self.linear(x) + self.table(torch.arange(2)))
        if self.training:
            self.train(False)
        return (h * 0).log()


def everything(net):
    dice, array, torchs = net.dice
    return pickle.dumps((
        net.bag.count, net.bag.items, list(net.bag.inner["a"]), net.numbers.tolist(), dice.getstate(),
        array.bit_generator.state, torchs.get_state().tolist(), np.random.get_state()[1].tolist(), random.getstate(),
        torch.get_rng_state().tolist(), [value.tolist() for value in net.state_dict().values()],
        [each._version for each in net.state_dict(keep_vars=True).values()], sorted(vars(net)), net.training,
        [None if p.grad is None else p.grad.tolist() for p in net.parameters()],
    ))  # fmt: skip


def test_state_of_every_kind_is_restored():
    net, x = Stateful(), torch.randn(2, 4)
    net(x).sum().backward()
    net.train()
    call = record_call(net, (x,), {}, 0)
    before, dictionaries = everything(net), [vars(module) for module in net.modules()]
    hold = (net.bag, net.linear.weight, net.linear.weight.grad, net._buffers["total"], net._parameters)
    found = replay([call]).origin
    assert found is not None
    assert found.operation == "log"
    assert everything(net) == before
    assert all(vars(module) is own for module, own in zip(net.modules(), dictionaries, strict=True))
    now = (net.bag, net.linear.weight, net.linear.weight.grad, net._buffers["total"], net._parameters)
    assert all(a is b for a, b in zip(now, hold, strict=True))


OUTSIDE = nn.BatchNorm1d(4)


class Calling(nn.Module):
    """Calls a module that nobody registered."""

    def __init__(self, where):
        super().__init__()
        self.linear, self.where = nn.Linear(4, 4), where
        self.held = [nn.BatchNorm1d(4)] if where == "a list" else None

    def forward(self, x):
        inner = self.held[0] if self.held else OUTSIDE
        try:
            return nn.Softplus()(inner(self.linear(x))).log() / 0
        except Exception:  # noqa: BLE001 - as people do
            return x


@pytest.mark.parametrize("where", ["a list", "a global"])
def test_modules_that_were_not_registered_are_not_run(where):
    net, x = Calling(where), torch.randn(6, 4)
    call = record_call(net, (x,), {}, 0)
    assert replay([call]) == Replay(None, finite=False)
    assert int((net.held[0] if net.held else OUTSIDE).num_batches_tracked) == 0


@pytest.mark.parametrize("holds", [iter([1]), threading.Lock(), object(), [].append, sys.stdout])
def test_uncopyable_state_is_not_replayed(holds):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.held = holds

        def forward(self, x):
            return x * float(pytest.fail("it was run"))

    x = torch.ones(1)
    odd = Odd()
    assert replay([record_call(odd, (x,), {}, 0)]).origin is None


def test_a_model_that_handles_missing_values_is_not_reported():
    class Filling(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 1)

        def forward(self, x):
            return self.linear(torch.nan_to_num(x))

    net, x = Filling(), torch.ones(6, 4)
    x[2, 3] = float("nan")
    assert replay([record_call(net, (x,), {}, 0)]) == Replay(None, finite=True)


def test_hidden_code_is_distinguished():
    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            h = self.linear(x).relu() * 0
            mask = torch.tensor([0.0, 1, 1, 1]).log()  # without a gradient: a mask
            return torch.where(h > 0, h.log(), 0.0) + (h + mask).softmax(-1)

    net, x = Hidden(), torch.ones(6, 4)
    shown = replay([record_call(net, (x,), {}, 0)])
    assert shown.finite
    assert (shown.origin.operation, shown.origin.module) == ("log", "Hidden")


def test_inner_compiled_code_is_not_recompiled():
    compiled = []

    def backend(graph, inputs):
        compiled.append(1)
        return graph.forward

    inner = torch.compile(nn.Linear(4, 4), backend=backend)
    net, x = nn.Sequential(inner, Log()), torch.randn(2, 4)
    call = record_call(net, (x,), {}, 0)
    net(x)
    assert len(compiled) == 1
    assert replay([call]).origin.operation == "log"
    net(x)
    assert len(compiled) == 1


def test_nothing_is_kept_alive():
    net, x = nn.Sequential(nn.Linear(4, 4), Log()), torch.randn(2, 4)
    call = record_call(net, (x,), {"m": [x * 1]}, 0)
    assert call.options["m"][0].tensor() is None
    call = record_call(net, (x,), {}, 0)
    assert replay([call]).origin is not None
    gone = [weakref.ref(each) for each in (net, net[0], net[0].weight, x)]
    gc.disable()
    try:
        del net, x
        assert [each() for each in gone] == [None] * 4
    finally:
        gc.enable()


SCRIPT_MODEL = nn.Linear(4, 1)


def steps(watched, closing=False):
    """Four updates with a batch that breaks the third; returns how often the model ran, and what became of it."""

    class Once(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.ran = nn.Linear(4, 1), ran
            self.linear.load_state_dict(SCRIPT_MODEL.state_dict())

        def forward(self, x):
            COUNTED.append(1)
            return (self.linear(x) * 0).log() if len(self.ran) == 2 else self.linear(x)

    ran = []
    COUNTED.clear()
    torch.manual_seed(0)
    model, watch = Once(), Watch([])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if watched:
        watch.start()
    try:
        for _ in range(4):
            x = torch.randn(8, 4)

            def closure(x=x):
                optimizer.zero_grad()
                loss = model(x).mean()
                loss.backward()
                return loss

            if closing:
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()
            ran.append(1)
    finally:
        report = watch.stop() if watched else None
    return len(COUNTED), model.linear.weight.tolist(), torch.get_rng_state().tolist(), report


COUNTED = []


@pytest.mark.parametrize("closing", [False, True])
def test_a_batch_is_replayed_once_without_changing_results(closing):
    bare, watched = steps(False, closing), steps(True, closing)
    assert (bare[0], watched[0]) == (4, 5)
    assert repr(watched[1:3]) == repr(bare[1:3])
    assert not watched[3].problems


def test_a_program_with_its_own_check_is_not_replayed():
    ran = []
    model = nn.Sequential(nn.Linear(4, 4), Counting(ran))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = Watch([])
    watch.start()
    try:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(2, 4)).sum().backward()
            if nn.utils.clip_grad_norm_(model.parameters(), 1.0).isfinite():
                optimizer.step()
    finally:
        watch.stop()
    assert len(ran) == 3


class Counting(nn.Module):
    def __init__(self, ran):
        super().__init__()
        self.count = lambda: ran.append(1)

    def forward(self, x):
        self.count()
        return (x * 0).log()


def test_the_program_goes_on_if_a_batch_cannot_be_replayed():
    class Once(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 1)

        def forward(self, x):
            COUNTED.append(1)
            if len(COUNTED) == 2:
                raise SystemExit("only once")
            return self.linear(x) * float("nan")

    COUNTED.clear()
    model, watch, x = Once(), Watch([]), torch.randn(2, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch.start()
    try:
        model(x).sum().backward()
        optimizer.step()
    finally:
        report = watch.stop()
    assert len(COUNTED) == 2
    assert model.linear.weight.isnan().all()
    assert any("only once" in problem for problem in report.problems)


def test_calls_that_cannot_be_replayed_are_not_recorded():
    net = Log()
    with torch.inference_mode():
        inferred = torch.ones(2)
    for argument in (inferred, iter([1]), object(), torch.empty(2, device="meta"), [[[[[torch.ones(1)]]]]], [1] * 100):
        assert record_call(net, (argument,), {}, 0) is None
