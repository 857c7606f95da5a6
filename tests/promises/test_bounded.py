"""What is remembered of a run does not grow with it: counted, container by container, early and late."""

from __future__ import annotations

import collections
import gc
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trueloop.core.downsampling import MAX_POINTS, DownsampledSeries
from trueloop.sanitizer.watch import Watch

APART = (
    type,
    types.ModuleType,
    types.CodeType,
    types.FrameType,
    torch.Tensor,
    nn.Module,
    torch.optim.Optimizer,
    DownsampledSeries,
)
COUNTED = (
    list, dict, set, frozenset, tuple, collections.deque, weakref.WeakKeyDictionary, weakref.WeakValueDictionary,
    weakref.WeakSet,
)  # fmt: skip


def remembered(watch: Watch) -> dict[str, int]:
    """Elements of everything that is within reach of a watch, by what it lies in; series, which are thinned, apart."""
    queue: list[tuple[Any, str]] = [(watch, "watch")]
    seen: set[int] = set()
    sizes: collections.Counter[str] = collections.Counter()
    while queue:
        thing, path = queue.pop()
        if id(thing) in seen or isinstance(thing, APART):
            continue
        seen.add(id(thing))
        if isinstance(thing, COUNTED):
            sizes[path] += len(thing)
        own = type(thing).__module__.startswith("trueloop")
        inside = f"{path} > {type(thing).__qualname__}" if own and path.count(">") < 4 else path
        if isinstance(thing, types.FunctionType):  # its cells, and not the globals of its module
            queue += [(cell.cell_contents, inside) for cell in thing.__closure__ or () if cell != types.CellType()]
        else:
            queue += [(inner, inside) for inner in gc.get_referents(thing)]
    return dict(sizes)


def points(watch: Watch) -> int:
    """Return the length of the longest series."""
    held = (value for value in vars(watch._recorder).values())
    several = (each for value in held for each in (value.values() if isinstance(value, dict) else [value]))
    return max(len(each.values) for each in several if isinstance(each, DownsampledSeries))


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is forgotten now and then is forgotten early, so that a short run shows it."""
    monkeypatch.setattr("trueloop.failures.memory.graph_kept.hook.MAX_MARKERS", 16)


def tiny() -> Callable[[], None]:
    """An update that costs next to nothing."""
    weight = nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.SGD([weight], lr=0.1, foreach=False)

    def update() -> None:
        optimizer.zero_grad()
        (weight * weight).backward()
        optimizer.step()

    return update


def everything() -> Callable[[], None]:
    """An update that makes every source tell something."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.1), nn.Linear(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1000)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0, enabled=False)
    data = DataLoader(TensorDataset(torch.randn(8, 4), torch.randint(3, (8,))), batch_size=4, shuffle=True)
    other = DataLoader(data.dataset, batch_size=8)

    def update() -> None:
        for x, y in data:
            optimizer.zero_grad()
            scaler.scale(F.cross_entropy(model(x), y)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        schedule.step()
        model.eval()
        with torch.no_grad():
            for x, _ in other:
                model(x)
        model.train()
        model.load_state_dict(model.state_dict())
        torch.manual_seed(int(torch.randint(1 << 30, ())))

    return update


def wrong() -> Callable[[], None]:
    """An update that is found fault with again and again."""
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def update() -> None:
        loss = F.cross_entropy(model(torch.randn(5, 4)).softmax(1), torch.randint(3, (5,)))
        loss.backward()
        optimizer.step()

    return update


def by_hand() -> Callable[[], None]:
    """An update that no optimizer makes, so that nothing says where one ends."""
    model = nn.Linear(4, 3)

    def update() -> None:
        model.zero_grad()
        F.cross_entropy(model(torch.randn(5, 4)), torch.randint(3, (5,))).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(parameter.grad, alpha=0.1)

    return update


def trials() -> Callable[[], None]:
    """Models, optimizers, loaders and schedules that come and go."""

    def update() -> None:
        model = nn.Sequential(nn.Linear(4, 3))
        optimizer = torch.optim.AdamW(model.parameters())
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer)
        for x, y in DataLoader(TensorDataset(torch.randn(4, 4), torch.randint(3, (4,))), batch_size=2):
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()

    return update


def grown(watch: Watch, update: Callable[[], None], times: int, *, apart: int = 0) -> dict[str, int]:
    """Return what more is remembered after some updates; the least at five times that are some updates apart."""

    def settled() -> dict[str, int]:
        found: list[dict[str, int]] = []
        for _ in range(5 if apart else 1):
            for _ in range(apart):
                update()
            watch.timing()  # nothing waits after it
            gc.collect()
            found.append(remembered(watch))
        return {path: min(each.get(path, 0) for each in found) for path in found[0]}

    early = settled()
    for _ in range(times):
        update()
    late = settled()
    return {path: size - early.get(path, 0) for path, size in late.items() if size > early.get(path, 0)}


def test_many_updates(new_watch: Callable[[], Watch]):
    torch.manual_seed(0)
    with new_watch() as watch:
        update = tiny()
        for _ in range(2_000):
            update()
        more = grown(watch, update, 18_000)
    assert sum(more.values()) < 400, more  # what keeps the latest few hundred may not be full yet on a busy machine
    assert watch.report().updates == 20_000
    assert not watch.report().problems


@pytest.mark.parametrize("make", [tiny, everything, wrong], ids=lambda make: make.__name__)
def test_many_fully_traced_updates(
    make: Callable[[], Callable[[], None]], new_watch: Callable[[], Watch], monkeypatch: pytest.MonkeyPatch
):
    for name in ("INITIAL_UPDATES", "MAX_BATCHES"):
        monkeypatch.setattr(f"trueloop.tracing.sampling.{name}", 1 << 40)
    torch.manual_seed(0)
    with new_watch() as watch:
        update = make()
        for _ in range(300):
            update()
        more = grown(watch, update, 600)
    assert sum(more.values()) < 100, more
    assert watch.report().updates_traced >= 900
    assert 0 < points(watch) <= MAX_POINTS
    assert not watch.report().problems


def test_a_loop_without_an_optimizer(new_watch: Callable[[], Watch]):
    torch.manual_seed(0)
    with new_watch() as watch:
        update = by_hand()
        for _ in range(4_500):
            update()
        more = grown(watch, update, 600)
    assert sum(more.values()) < 100, more
    assert watch.report().updates > 5_000
    assert not watch.report().problems


def test_models_that_come_and_go(new_watch: Callable[[], Watch]):
    torch.manual_seed(0)
    with new_watch() as watch:
        update = trials()
        for _ in range(700):  # the layers of 256 models and the lines of 64 optimizers are remembered
            update()
        more = grown(watch, update, 200, apart=12)  # what waits for the end of a burst comes and goes
    assert sum(more.values()) < 100, more
