"""Nothing of ours is left in torch, nor on the program's own objects, once nobody watches any more."""

from __future__ import annotations

import gc
import random
import sys
import threading
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from trueloop.sanitizer.watch import Watch
from trueloop.tracing.hooks.optimizers import Steps
from trueloop.tracing.patch import Patches
from trueloop.tracing.sampling import INITIAL_UPDATES

Snapshot = dict[str, Any]


class Custom(torch.optim.lr_scheduler.LRScheduler):
    """A scheduler of the program's own."""

    def get_lr(self) -> list[float]:
        return [0.1 for _ in self.optimizer.param_groups]

    def step(self, epoch: int | None = None) -> None:
        super().step(epoch)


class Careful(torch.optim.SGD):
    """An optimizer of the program's own."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)


def train(updates: int = 20, *, each: Callable[[int], None] = lambda number: None) -> list[Any]:
    """Go through everything that is replaced, and return the objects it was done with."""
    data = Subset(TensorDataset(torch.randn(2 * updates, 4), torch.randint(3, (2 * updates,))), range(2 * updates))
    loader = DataLoader(data, batch_size=2, shuffle=True)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    optimizer = Careful(model.parameters(), lr=0.1)
    schedule, scaler = Custom(optimizer), torch.amp.GradScaler("cpu", init_scale=2.0)
    for number, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(model(x), y)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        each(number)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
    model.load_state_dict(model.state_dict())
    model.eval()
    return [model, optimizer, schedule, scaler, loader]


def modules() -> Iterator[tuple[str, ModuleType]]:
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and name.partition(".")[0] == "torch":
            yield name, module
    yield from (("random", random), ("numpy.random", np.random), (__name__, sys.modules[__name__]))


def snapshot() -> Snapshot:
    """What is where: functions, classes and their attributes, the code and cells of functions, global hooks."""
    found: Snapshot = {}
    for name, module in modules():
        for attribute, value in list(vars(module).items()):
            if callable(value) or "trueloop" in attribute:
                found[f"{name}.{attribute}"] = value
            if type(value) is FunctionType:  # isinstance would ask what torch has put there, which may warn
                found |= insides(f"{name}.{attribute}", value)
            if issubclass(type(value), type) and value.__module__ == name:
                for inner, thing in list(vars(value).items()):
                    if callable(thing) or isinstance(thing, property | classmethod | staticmethod):
                        found[f"{name}.{attribute}.{inner}"] = thing
        if attribute_hooks := [key for key in vars(module) if "global" in key and "hook" in key]:
            found |= {f"{name}.{key}": tuple(hooks(vars(module)[key])) for key in attribute_hooks}
    return found


def insides(name: str, function: FunctionType) -> Snapshot:
    cells = [cell.cell_contents for cell in function.__closure__ or () if callable(contents(cell))]
    return {f"{name}.__code__": function.__code__, f"{name}.__closure__": tuple(cells)}


def contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return None


def hooks(table: Any) -> list[Any]:
    return list(table.values()) if isinstance(table, dict) else []


def own(things: list[Any]) -> dict[str, Any]:
    """What the program's own objects have as attributes and hooks."""
    found: dict[str, Any] = {}
    for number, thing in enumerate(things):
        found[f"{number}"] = sorted(vars(thing))
        for module in thing.modules() if isinstance(thing, nn.Module) else ():
            tables = {key: hooks(value) for key, value in vars(module).items() if "hook" in key}
            found[f"{number} {id(module)}"] = (sorted(vars(module)), type(module), tables)
        for parameter in thing.parameters() if isinstance(thing, nn.Module) else ():
            late = parameter._post_accumulate_grad_hooks
            found[f"{number} {id(parameter)}"] = (vars(parameter), hooks(parameter._backward_hooks), hooks(late))
    return found


def changed(before: Snapshot, after: Snapshot) -> list[str]:
    """Names of what is another object now; modules that were imported meanwhile are left out."""
    imported = {name.rpartition(".")[0] for name in after} - {name.rpartition(".")[0] for name in before}
    same = lambda name: name in before and name in after and _same(before[name], after[name])  # noqa: E731
    names = {name for name in before.keys() | after.keys() if not same(name)}
    return sorted(name for name in names if not any(name.startswith(f"{each}.") for each in imported))


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return one is other


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    """What torch itself replaces or imports at its first use is done before."""
    train(3)
    nn.utils.clip_grad_norm_([], 1.0)
    torch._dynamo  # noqa: B018 - imported by some optimizers, some time


def once(new_watch: Callable[[], Watch]) -> None:
    with new_watch():
        train()


def while_in_full(new_watch: Callable[[], Watch]) -> None:
    with new_watch():
        train(3)


def again_and_again(new_watch: Callable[[], Watch]) -> None:
    for _ in range(4):
        once(new_watch)


def without_a_word(new_watch: Callable[[], Watch]) -> None:
    with new_watch():
        pass


def nested(new_watch: Callable[[], Watch]) -> None:
    with new_watch():
        train()
        with new_watch():
            train()
        train()


def ended_in_any_order(new_watch: Callable[[], Watch]) -> None:
    watches = [new_watch() for _ in range(3)]
    for watch in watches:
        watch.start()
        train(4)
    for watch in (watches[1], watches[0], watches[2]):
        watch.stop()
        train(4)


def an_exception_leaves(new_watch: Callable[[], Watch]) -> None:
    def fail(number: int) -> None:
        if number == 5:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), new_watch():
        train(each=fail)


def an_exception_in_the_middle_of(new_watch: Callable[[], Watch]) -> None:
    """Of a forward, a backward, a step, a loader: each leaves our own frames, too."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def fail(*args: Any) -> Any:
        raise ZeroDivisionError

    class Broken(torch.utils.data.Dataset[int]):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> int:
            raise ZeroDivisionError

    with new_watch():
        for hooked, act in (
            (model.register_forward_pre_hook(fail), lambda: model(torch.ones(1, 2))),
            (model.weight.register_hook(fail), (model.weight.sum() * 2).backward),
            (optimizer.register_step_pre_hook(fail), optimizer.step),
        ):
            with pytest.raises(ZeroDivisionError):
                act()
            hooked.remove()
        with pytest.raises(ZeroDivisionError):
            next(iter(DataLoader(Broken())))
        train(4)


def stopped_within_an_update(new_watch: Callable[[], Watch]) -> None:
    for moment in ("between", "forward", "backward", "step", "closure"):
        watch, stop = new_watch(), []
        model = nn.Linear(2, 2)
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

        def at(now: str, moment: str = moment, stop: list[Watch] = stop) -> None:
            if now == moment and stop:
                stop.pop().stop()

        def closure(at: Callable[[str], None] = at, model: nn.Module = model) -> Any:
            loss = model(torch.ones(1, 2)).sum() ** 2
            loss.backward()
            at("closure")
            return loss

        model.register_forward_hook(lambda *args, at=at: at("forward"))
        model.weight.register_hook(lambda gradient, at=at: at("backward"))
        optimizer.register_step_pre_hook(lambda *args, at=at: at("step"))
        watch.start()
        stop.append(watch)
        closure()
        at("between")
        optimizer.step(closure)
        assert not stop


def stopped_on_another_thread(new_watch: Callable[[], Watch]) -> None:
    watch = new_watch()
    watch.start()
    train(4)
    thread = threading.Thread(target=watch.stop)
    thread.start()
    thread.join()


def trained_on_another_thread(new_watch: Callable[[], Watch]) -> None:
    with new_watch():
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()


WAYS = [
    once, while_in_full, again_and_again, without_a_word, nested, ended_in_any_order, an_exception_leaves,
    an_exception_in_the_middle_of, stopped_within_an_update, stopped_on_another_thread, trained_on_another_thread,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_pytorch_is_unchanged(way: Callable[[Callable[[], Watch]], None], new_watch: Callable[[], Watch]):
    way(new_watch)  # whatever torch does to itself on the way is done now
    before = snapshot()
    way(new_watch)
    assert changed(before, snapshot()) == []


def interrupted_while_it_begins(new_watch: Callable[[], Watch]) -> None:
    watch = new_watch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Steps, "install_full_tracing", interrupt)
        with pytest.raises(KeyboardInterrupt):
            watch.start()
    train(4)


def interrupted_while_it_ends(new_watch: Callable[[], Watch]) -> None:
    watch = new_watch()
    watch.start()
    train(4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch._attachment.stream, "on_detach", [interrupt])
        with pytest.raises(KeyboardInterrupt):
            watch.stop()


def interrupted_between_two_states(new_watch: Callable[[], Watch]) -> None:
    """Where the full view is closed."""
    watch = new_watch()
    with pytest.MonkeyPatch.context() as patch, watch:
        full, restore = watch._attachment._full_tracing, Patches.restore
        patch.setattr(Patches, "restore", lambda patches: interrupt() if patches is full else restore(patches))
        with pytest.raises(KeyboardInterrupt):
            train(INITIAL_UPDATES + 1)
        patch.undo()


def interrupt(*args: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "way",
    [interrupted_while_it_begins, interrupted_while_it_ends, interrupted_between_two_states],
    ids=lambda way: way.__name__,
)
def test_pytorch_is_restored_also_after_an_interruption(
    way: Callable[[Callable[[], Watch]], None], new_watch: Callable[[], Watch]
):
    before = snapshot()
    way(new_watch)
    assert changed(before, snapshot()) == []


def test_pytorch_is_patched_during_a_watch(new_watch: Callable[[], Watch]):
    """The snapshot sees each kind of replacement: attributes of modules and classes, code, cells, hooks."""
    before = snapshot()
    with new_watch():
        now = changed(before, snapshot())
    for name in (
        "torch.autograd.backward",
        "torch.nn.modules.module.Module.__call__",
        "torch.optim.optimizer.Optimizer.__init__",
        "torch.optim.optimizer.Optimizer.zero_grad",
        "torch.optim.optimizer._global_optimizer_post_hooks",
        "torch.utils.data.dataloader.DataLoader.__iter__",
        "torch.nn.functional.cross_entropy.__code__",
        "torch.nn.utils.clip_grad.clip_grad_norm_.__closure__",
        "torch.amp.grad_scaler.GradScaler.step",
        "random.seed",
        f"{__name__}.Custom.step",
    ):
        assert name in now


def test_sampled_tracing_replaces_less_than_full_tracing(new_watch: Callable[[], Watch]):
    before = snapshot()
    with new_watch() as watch:
        full = changed(before, snapshot())
        train(20, each=lambda number: None)
        while watch._attachment.stream.full_tracing:
            train(20)
        lightly = changed(before, snapshot())
    assert set(lightly) < set(full)
    assert "torch.nn.modules.module.Module.__call__" not in lightly
    assert "torch.nn.functional.cross_entropy.__code__" not in lightly


def test_user_objects_are_not_modified(new_watch: Callable[[], Watch]):
    things = train(2)
    before = own(things)
    model, optimizer = things[:2]
    with new_watch():
        for _ in range(20):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        assert own(things) == before
    assert own(things) == before


def test_replacements_by_other_code_remain(new_watch: Callable[[], Watch], monkeypatch: pytest.MonkeyPatch):
    calls: list[str] = []
    before = torch.autograd.backward

    def theirs(*args: Any, **options: Any) -> Any:
        calls.append("theirs")
        return inner(*args, **options)

    with new_watch():
        inner = torch.autograd.backward
        monkeypatch.setattr(torch.autograd, "backward", theirs)
    assert torch.autograd.backward is theirs
    things = train(2)
    assert calls == ["theirs"] * 2
    with new_watch():
        train(2)
    assert torch.autograd.backward is theirs
    monkeypatch.undo()
    torch.autograd.backward = before
    del things
    gc.collect()
