"""Nothing of the program lives longer for being watched: batches, graphs, models, optimizers, loaders, states.

Each program notes, moment by moment, which of its objects are still there; the collector of cycles is off, so that one
reference too many shows. Watched, the notes must be the same.
"""

from __future__ import annotations

import copy
import gc
import io
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from trueloop.sanitizer.watch import Watch

Alive = list[tuple[str, ...]]


class Lives:
    """Objects by name, as long as they live."""

    def __init__(self) -> None:
        self._known: list[tuple[str, weakref.ref[Any]]] = []
        self.notes: Alive = []

    def follow(self, **things: Any) -> None:
        """Know some more objects."""
        self._known += [(name, weakref.ref(thing)) for name, thing in things.items()]

    def graph(self, output: Tensor) -> Tensor:
        """Put something into the graph that lives as long as it does."""
        return Canary.apply(output, self)

    def note(self) -> None:
        """Write down who is there."""
        self.notes.append(tuple(name for name, thing in self._known if thing() is not None))


class Egg:
    """Can be referred to weakly."""


class Canary(torch.autograd.Function):
    """Passes everything on."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, lives: Lives) -> Tensor:  # type: ignore[override]
        ctx.egg = Egg()
        lives.follow(graph=ctx.egg)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return gradient, None


def network(lives: Lives) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.1), nn.Linear(6, 3))
    lives.follow(model=model, weight=model[0].weight)
    return model


def updates(lives: Lives) -> None:
    model = network(lives)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    lives.follow(optimizer=optimizer)
    for number in range(24):
        x, y = torch.randn(5, 4), torch.randint(3, (5,))
        out = lives.graph(model(x))
        loss = F.cross_entropy(out, y)
        lives.follow(x=x, y=y, out=out, loss=loss)
        optimizer.zero_grad()
        if number == 20:
            del loss, out  # an update that never comes
            lives.note()
            continue
        loss.backward()
        lives.follow(gradient=model[0].weight.grad)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        del out, loss, x, y
        lives.note()
        optimizer.zero_grad()
        lives.note()
    del model
    lives.note()
    del optimizer
    lives.note()


def batches(lives: Lives) -> None:
    data = TensorDataset(torch.randn(60, 4), torch.randint(3, (60,)))
    parts = random_split(data, [40, 20])
    lives.follow(data=data, training=parts[0], validation=parts[1])
    loaders = [DataLoader(part, batch_size=4, shuffle=part is parts[0]) for part in parts]
    lives.follow(training_loader=loaders[0], validation_loader=loaders[1])
    model = network(lives)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        for x, y in loaders[0]:
            lives.follow(x=x, y=y)
            F.cross_entropy(lives.graph(model(x)), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            del x, y
            lives.note()
        model.eval()
        with torch.no_grad():
            for x, _ in loaders[1]:
                lives.follow(held_out=x)
                model(x)
                del x, _
                lives.note()
        model.train()
    del loaders, data, parts
    lives.note()


def trials(lives: Lives) -> None:
    """Models and all that belongs to them come and go."""
    for kind in (torch.optim.SGD, torch.optim.AdamW, torch.optim.LBFGS):
        model = network(lives)
        optimizer = kind(model.parameters(), lr=0.01)
        data = DataLoader(TensorDataset(torch.randn(12, 4), torch.randint(3, (12,))), batch_size=6)
        teacher = copy.deepcopy(model).eval().requires_grad_(False)
        lives.follow(teacher=teacher, optimizer=optimizer, loader=data, dataset=data.dataset)
        for x, y in data:

            def closure(x: Tensor = x, y: Tensor = y, model: nn.Module = model, teacher: nn.Module = teacher) -> Any:
                model.zero_grad()
                loss = F.cross_entropy(lives.graph(model(x)), y) + F.mse_loss(model(x), teacher(x))
                loss.backward()
                return loss

            lives.follow(closure=closure)
            optimizer.step(closure)
        del model, optimizer, data, teacher, closure, x, y
        lives.note()


def states(lives: Lives) -> None:
    model = network(lives)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    lives.follow(scaler=scaler)
    best = None
    for _ in range(20):
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(lives.graph(model(torch.randn(5, 4))), torch.randint(3, (5,)))).backward()
        scaler.step(optimizer)
        scaler.update()
        best = copy.deepcopy(model.state_dict())
        file = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.seek(0)
        read = torch.load(file)
        lives.follow(best=best["0.weight"], read=read["model"]["0.weight"])
        model.load_state_dict(read["model"])
        del read
        lives.note()
    del best, model, optimizer, scaler
    lives.note()


def recurrent(lives: Lives) -> None:
    """Graphs through several calls, cut now and then; several losses with one graph."""
    cell = nn.LSTMCell(3, 4)
    lives.follow(cell=cell)
    optimizer = torch.optim.RMSprop(cell.parameters())
    state = (torch.zeros(2, 4), torch.zeros(2, 4))
    for number in range(40):
        out, memory = cell(torch.randn(2, 3), state)
        state = (lives.graph(out), memory)
        if number % 4 == 3:
            loss = state[0].square().mean()
            loss.backward(retain_graph=True)
            memory.mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            state = (state[0].detach(), state[1].detach())
            del loss
        del out, memory
        lives.note()


class Hiding(nn.Module):
    """Makes a layer for each call, which nobody holds."""

    def __init__(self, lives: Lives) -> None:
        super().__init__()
        self.own, self._lives = nn.Linear(4, 4), lives

    def forward(self, x: Tensor) -> Tensor:
        layer = nn.Linear(4, 3)
        self._lives.follow(layer=layer)
        return layer(self.own(x))


def strangers(lives: Lives) -> None:
    """Modules that their model does not hold."""
    model = Hiding(lives)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lives.follow(model=model)
    for _ in range(6):
        F.cross_entropy(lives.graph(model(torch.randn(5, 4))), torch.randint(3, (5,))).backward()
        optimizer.step()
        optimizer.zero_grad()
        lives.note()
    del model, optimizer
    lives.note()


def errors(lives: Lives) -> None:
    """What was under way when an exception came."""
    model = network(lives)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    for number in range(6):
        x = torch.randn(5, 4)
        lives.follow(x=x)
        hooked = (
            model[3].register_forward_pre_hook(fail),
            model[3].weight.register_hook(fail),
            optimizer.register_step_pre_hook(fail),
        )[number % 3]
        try:
            lives.graph(model(x)).sum().backward()
            optimizer.step()
        except ZeroDivisionError:
            pass
        hooked.remove()
        for table in (model[3]._forward_pre_hooks, optimizer._optimizer_step_pre_hooks):
            table.clear()
        model[3].weight._backward_hooks = None
        del x
        lives.note()
    del model, optimizer, hooked
    lives.note()


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


PROGRAMS = [updates, batches, trials, states, recurrent, strangers, errors]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_all_objects_are_freed_as_usual(program: Callable[[Lives], None], new_watch: Callable[[], Watch]):
    def notes(watch: Watch | None) -> Alive:
        torch.manual_seed(0)
        lives = Lives()
        if watch is not None:
            watch.start()
        program(lives)
        lives.note()
        if watch is not None:
            assert not watch.stop().problems
        return lives.notes

    notes(None)  # what torch imports at its first use may run the collector, or keep a frame
    bare = notes(None)
    assert any("x" not in there or "graph" not in there for there in bare)
    assert notes(new_watch()) == bare


def test_an_extra_reference_would_be_detected():
    kept, lives = [], Lives()

    def keep(module: nn.Module, args: Any, output: Any) -> None:
        kept.append(output)

    handle = nn.modules.module.register_module_forward_hook(keep)
    try:
        updates(lives)
    finally:
        handle.remove()
    plain = Lives()
    updates(plain)
    assert lives.notes != plain.notes


def test_all_objects_are_freed_after_the_watch(new_watch: Callable[[], Watch]):
    """Not even a report, its findings and the judge behind them hold anything of the program."""
    lives = Lives()
    with new_watch() as watch:
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        lives.follow(model=model, weight=model.weight)
        for _ in range(30):
            loss = F.cross_entropy(model(torch.randn(5, 4)).softmax(1), torch.randint(3, (5,)))  # and never cleared
            loss.backward()
            optimizer.step()
    lives.follow(optimizer=optimizer, loss=loss)
    report = watch.report()
    del model, optimizer, loss
    lives.note()
    assert len(report.findings) > 1
    gc.collect()  # an optimizer is in a cycle of its own
    lives.note()
    assert lives.notes[-1] == ()
