"""Values of tensors that lie on a device are not read: reading one waits for everything that was queued before it.

There is no device on most machines. So tensors tell us, and nobody else, that they are on one, while their numbers stay
where they are, and whatever reads a number from within a handler of ours is noted with its place. Where there is a
device, CUDA itself objects.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

import trueloop
from trueloop.sanitizer.watch import Watch

OURS = str(Path(trueloop.__file__).parent)
FENCE = str(Path(OURS, "tracing", "stream.py"))
OPERATIONS = ("_local_scalar_dense", "equal", "nonzero", "masked_select", "_unique2", "unique_dim", "is_nonzero")
METHODS = ("item", "tolist", "numpy", "cpu", "to", "__array__", "__bool__", "__float__", "__int__", "__index__")
UPDATES = 40
FULL_UPDATES = 16  # traced in full; the others are sampled


@pytest.fixture(autouse=True)
def few_full_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trueloop.tracing.sampling.INITIAL_UPDATES", FULL_UPDATES)


class Waiting(TorchDispatchMode):
    """Notes every operation that needs a number, and is done on behalf of ours."""

    def __init__(self) -> None:
        super().__init__()
        self.places: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function._overloadpacket.__name__ in OPERATIONS:
            self.note(function.__name__)
        return function(*args, **(kwargs or {}))

    def note(self, what: str) -> None:
        frame, nearest = sys._getframe(2), None
        while frame is not None:
            file = frame.f_code.co_filename
            nearest = nearest or (f"{what} at {file}:{frame.f_lineno}" if file.startswith(OURS) else None)
            if file == FENCE and frame.f_code.co_name == "run":  # the program's own calls never come through it
                self.places.append(str(nearest))
                return
            frame = frame.f_back


@contextmanager
def noted(device: str) -> Iterator[list[str]]:
    """Have every tensor tell us that it is on a device, and note whether we read one."""
    waiting = Waiting()

    def reader(name: str, original: Any) -> Any:
        def read(tensor: Tensor, *args: Any, **options: Any) -> Any:
            if name != "to" or "cpu" in map(str, (*args, *options.values())):
                waiting.note(name)
            return original(tensor, *args, **options)

        return read

    with pytest.MonkeyPatch.context() as patch:
        for name in METHODS:
            patch.setattr(Tensor, name, reader(name, getattr(Tensor, name)), raising=False)
        told = {"device": torch.device(device), "is_cpu": device == "cpu", "is_cuda": device == "cuda"}
        for name, value in told.items():
            patch.setattr(Tensor, name, property(_told_us(value, getattr(Tensor, name))), raising=False)
        with waiting:
            yield waiting.places


def _told_us(value: Any, original: Any) -> Callable[[Tensor], Any]:
    def get(tensor: Tensor) -> Any:
        asks = sys._getframe(1).f_code.co_filename
        return value if asks.startswith(OURS) else original.__get__(tensor)

    return get


def classifier() -> None:
    model = nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=UPDATES)
    # No Subset: its indices are a list, and what we make of it lies on the CPU whatever it is taken for here.
    training, validation = (TensorDataset(torch.randn(n, 12), torch.randint(3, (n,))) for n in (160, 80))
    for _ in range(2):
        for x, y in DataLoader(training, batch_size=8, shuffle=True):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y, ignore_index=0).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            nn.utils.clip_grad_value_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        model.eval()
        with torch.no_grad():
            for x, _ in DataLoader(validation, batch_size=16):
                model(x)
        model.train()
        state = model.state_dict()
        torch.save({"model": state, "optimizer": optimizer.state_dict()}, io.BytesIO())
        model.load_state_dict(state)


def losses() -> None:
    """One of each, with a sum of all in the end."""
    model = nn.Linear(6, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.01), foreach=False)
    for _ in range(UPDATES):
        x, y = torch.randn(5, 6), torch.randint(4, (5,))
        out = model(x)
        chances = F.one_hot(y, 4).float()
        total = F.cross_entropy(out, y) + F.cross_entropy(out, chances) + F.nll_loss(out.log_softmax(1), y)
        total = total + F.mse_loss(out, chances) + F.l1_loss(out, chances) + F.huber_loss(out, chances)
        total = (
            total + F.binary_cross_entropy_with_logits(out, chances) + F.binary_cross_entropy(out.sigmoid(), chances)
        )
        total = total + F.cross_entropy(out, y, torch.ones(4)) + F.cross_entropy(out, y, label_smoothing=0.1)
        total = total + F.kl_div(out.log_softmax(1), chances.softmax(1), reduction="batchmean")
        total.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


def adversaries() -> None:
    """The generator's pass adds to gradients of the discriminator that a step has used, and they are cleared later."""
    maker, critic = nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    makes, judges = (torch.optim.AdamW(model.parameters(), betas=(0.5, 0.9)) for model in (maker, critic))
    ones, zeros = torch.ones(6, 1), torch.zeros(6, 1)
    for _ in range(UPDATES // 2):
        fake = maker(torch.randn(6, 3))
        judges.zero_grad()
        real = F.binary_cross_entropy_with_logits(critic(torch.randn(6, 4)), ones)
        (real + F.binary_cross_entropy_with_logits(critic(fake.detach()), zeros)).backward()
        judges.step()
        makes.zero_grad()
        F.binary_cross_entropy_with_logits(critic(fake), ones).backward()
        makes.step()


def windows() -> None:
    """Accumulation, cleared by hand; a part of the model is frozen and lies in the optimizer all the same."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    model[0].weight.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    data = DataLoader(TensorDataset(torch.randn(90, 4), torch.randn(90, 2)), batch_size=2)
    for _ in range(3):
        for number, (x, y) in enumerate(data):
            (F.mse_loss(model(x), y) / 4).backward()
            if number % 4 == 3 or number == 44:
                optimizer.step()
                for parameter in model.parameters():
                    parameter.grad = None


def scaled() -> None:
    model = nn.Linear(4, 3)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=8.0)
    for number in range(UPDATES):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(torch.randn(5, 4)), torch.randint(3, (5,)))
        scaler.scale(loss * (torch.inf if number == 7 else 1.0)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


def closure() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    x = torch.randn(8, 4)

    def evaluate() -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    for _ in range(8):
        optimizer.step(evaluate)


@pytest.mark.parametrize("program", [classifier, losses, adversaries, windows, scaled, closure])
def test_no_number_is_read(program: Callable[[], None], new_watch: Callable[[], Watch]):
    torch.manual_seed(0)
    with noted("cuda") as places, new_watch() as watch:
        program()
    assert places == []
    assert not watch.report().problems
    assert not watch.report().findings
    assert watch.report().updates >= 8


@pytest.mark.parametrize("program", [classifier, losses, adversaries, windows, scaled, closure])
def test_on_the_cpu_numbers_are_read(program: Callable[[], None], new_watch: Callable[[], Watch]):
    """What is noted above would be seen."""
    with noted("cpu") as places, new_watch():
        program()
    assert len(places) > 20


def test_used_gradients_are_found_without_synchronising(new_watch: Callable[[], Watch]):
    """Gradients that were never cleared are found all the same; then, when that is all but certain, a norm is read."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with noted("cuda") as places:
        watch = new_watch()
        with watch:
            for number in range(4):
                model(torch.randn(3, 4)).square().mean().backward()
                assert number or not places
                optimizer.step()
    assert "GRD001" in {finding.code for finding in watch.report().findings}
    assert not watch.report().problems
    assert {place for place in places if "gradient_ledger.py" not in place} == set()


def test_tensors_without_numbers(new_watch: Callable[[], Watch]):
    """On torch's own device for shapes alone, whatever reads a value raises."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)  # AdamW of torch 2.6 reads its steps
        with new_watch() as watch:
            for _ in range(UPDATES):
                x, y = torch.empty(5, 1, 6, 6), torch.empty(5, dtype=torch.long)
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
    assert not watch.report().problems
    assert not watch.report().findings
    assert watch.report().updates == UPDATES


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_cuda(new_watch: Callable[[], Watch]):
    """CUDA raises where it would be waited for; our fences turn that into problems, which are told."""
    with torch.device("cuda"):
        torch.manual_seed(0)
        x, y = torch.randn(8, 12), torch.randint(3, (8,))
        model = nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
        optimizer = torch.optim.AdamW(model.parameters())
        with new_watch() as watch:
            try:
                for number in range(UPDATES):
                    if number == 2:  # libraries are loaded, and memory is there
                        torch.cuda.set_sync_debug_mode("error")
                    optimizer.zero_grad()
                    F.cross_entropy(model(x), y).backward()
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
            finally:
                torch.cuda.set_sync_debug_mode("default")
    assert not watch.report().problems
    assert watch.report().updates == UPDATES
