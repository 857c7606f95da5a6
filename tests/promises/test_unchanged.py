"""What is watched computes the same numbers: weights, states and generators are equal bit for bit at the end."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, TensorDataset

from trueloop.sanitizer.watch import Watch

UPDATES = 40
FULL_UPDATES = 16  # traced in full; the others are sampled


@pytest.fixture(autouse=True)
def few_full_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trueloop.tracing.sampling.INITIAL_UPDATES", FULL_UPDATES)


def batches(*shape: int, classes: int = 3) -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(shape), torch.randint(classes, shape[:1])) for _ in range(UPDATES)]


def momentum() -> list[Any]:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, UPDATES)
    for x, y in batches(6, 4):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        schedule.step()
    return [model, optimizer, schedule]


def convolutions() -> list[Any]:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(64, 3)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for number, (x, y) in enumerate(batches(5, 1, 6, 6)):
        loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if number % 10 == 9:
            model.eval()
            with torch.no_grad():
                losses.append(model(x).sum().item())
            model.train()
    return [model, optimizer, losses]


def bfloat16() -> list[Any]:
    model = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for x, y in batches(6, 4):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return [model, optimizer]


def scaler() -> list[Any]:
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=5)
    for number, (x, y) in enumerate(batches(6, 4)):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y) * (torch.inf if number % 7 == 3 else 1.0)  # a step is left out
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    return [model, optimizer, scaler]


def closure() -> list[Any]:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, history_size=3)
    x, y = torch.randn(16, 4), torch.randn(16, 1)

    def evaluate() -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss

    losses = [optimizer.step(evaluate).item() for _ in range(20)]
    return [model, optimizer, losses]


class Augmented(Dataset[tuple[Tensor, int]]):
    """Draws from all three generators for every sample."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        noise = torch.randn(4) * random.random() + float(np.random.rand())
        return torch.arange(4.0) * index / 24 + noise, index % 3


def loader(workers: int) -> list[Any]:
    batches = DataLoader(Augmented(), batch_size=4, shuffle=True, num_workers=workers)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 3))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-2)
    seen = []
    for _ in range(3):
        for x, y in batches:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            seen.append(x)
    return [model, optimizer, seen]


def in_this_process() -> list[Any]:
    return loader(0)


def two_workers() -> list[Any]:
    return loader(2)


def splits() -> list[Any]:
    """Loaders over parts of one dataset, which are compared with one another."""
    dataset = TensorDataset(torch.randn(40, 12), torch.randint(3, (40,)))
    parts = torch.utils.data.random_split(dataset, [30, 10])
    model = nn.Linear(12, 3)
    optimizer = torch.optim.Adagrad(model.parameters())
    right = 0
    for _ in range(5):
        for x, y in DataLoader(parts[0], batch_size=8, shuffle=True):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            right += sum(int((model(x).argmax(1) == y).sum()) for x, y in DataLoader(parts[1], batch_size=8))
        model.train()
    return [model, optimizer, right]


def recomputation(reentrant: bool) -> list[Any]:
    inner = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.ReLU())
    model = nn.ModuleList([nn.Linear(4, 8), inner, nn.Linear(8, 3)])
    optimizer = torch.optim.AdamW(model.parameters())
    for x, y in batches(6, 4):
        hidden = checkpoint(inner, model[0](x), use_reentrant=reentrant)
        F.cross_entropy(model[2](hidden), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [model, optimizer]


def checkpoints() -> list[Any]:
    return recomputation(False)


def reentrant_checkpoints() -> list[Any]:
    return recomputation(True)


def gradients_of_gradients() -> list[Any]:
    model = nn.Sequential(nn.Linear(4, 8), nn.Softplus(), nn.Linear(8, 1))
    optimizer = torch.optim.NAdam(model.parameters(), lr=1e-2)
    for x, _ in batches(6, 4):
        x.requires_grad_()
        out = model(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        optimizer.zero_grad()
        (out.mean() + 10 * (slope.norm(dim=1) - 1).square().mean()).backward()
        optimizer.step()
    return [model, optimizer]


def frozen_and_sparse() -> list[Any]:
    words, head = nn.Embedding(10, 4, sparse=True), nn.Linear(4, 3)
    head.bias.requires_grad_(False)
    optimizers = [torch.optim.SparseAdam(words.parameters()), torch.optim.SGD(head.parameters(), lr=0.1)]
    for _ in range(UPDATES):
        F.nll_loss(head(words(torch.randint(10, (6,)))).log_softmax(1), torch.randint(3, (6,))).backward()
        for optimizer in optimizers:
            optimizer.step()
        words.zero_grad()
        head.zero_grad()
    return [words, head, *optimizers]


def never_cleared() -> list[Any]:
    """A mistake, so that there is something to find."""
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for x, y in batches(6, 4):
        loss = F.cross_entropy(model(x).softmax(1), y)
        loss.backward()
        optimizer.step()
        losses.append(loss)
    return [model, optimizer, losses]


SCRIPTS = [
    momentum, convolutions, bfloat16, scaler, closure, in_this_process, two_workers, splits, checkpoints,
    reentrant_checkpoints, gradients_of_gradients, frozen_and_sparse, never_cleared,
]  # fmt: skip


def bits(value: Any) -> bytes:
    """Every bit of a state, whatever it is made of."""
    if isinstance(value, Tensor):
        plain = value.detach().contiguous()
        return f"{plain.dtype}{tuple(plain.shape)}".encode() + plain.flatten().view(torch.uint8).numpy().tobytes()
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, dict):
        return b"{" + b",".join(bits(key) + b":" + bits(inner) for key, inner in value.items()) + b"}"
    if isinstance(value, list | tuple):
        return b"[" + b",".join(map(bits, value)) + b"]"
    if isinstance(value, float):
        return value.hex().encode()
    if hasattr(value, "state_dict"):
        gradients = [p.grad for p in value.parameters()] if isinstance(value, nn.Module) else []
        dense = [None if gradient is None else gradient.to_dense() for gradient in gradients]
        return bits([value.state_dict(), dense])
    assert isinstance(value, int | str | type(None)), value
    return repr(value).encode()


def ends(script: Callable[[], list[Any]], watch: Watch | None) -> tuple[list[str], str]:
    """Run a script from seeds and return digests of what it made, and of the generators."""
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(7)
    if watch is not None:
        watch.start()
    try:
        made = script()
    finally:
        report = watch.stop() if watch is not None else None
    generators = [torch.get_rng_state(), repr(random.getstate()), repr(np.random.get_state())]
    if report is not None:
        assert not report.problems
        assert report.updates >= 15
    return [hashlib.sha256(bits(each)).hexdigest() for each in made], hashlib.sha256(bits(generators)).hexdigest()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_every_bit_is_the_same(script: Callable[[], list[Any]], new_watch: Callable[[], Watch]):
    bare = ends(script, None)
    assert ends(script, None) == bare, "the script itself is not repeatable"
    assert ends(script, new_watch()) == bare
    assert ends(script, None) == bare, "watching has left something behind"


def test_a_difference_would_be_detected(new_watch: Callable[[], Watch]):
    """One draw more, or one bit of one weight, makes another digest."""

    def one_draw_more() -> list[Any]:
        made = momentum()
        torch.rand(1)
        return made

    def one_bit_more() -> list[Any]:
        made = momentum()
        with torch.no_grad():
            made[0][0].weight.flatten()[0].nextafter_(torch.tensor(9.0))
        return made

    plain = ends(momentum, None)
    assert ends(one_draw_more, None)[0] == plain[0]
    assert ends(one_draw_more, None)[1] != plain[1]
    assert ends(one_bit_more, None)[0][0] != plain[0][0]
    assert ends(one_bit_more, None)[0][1:] == plain[0][1:]


def test_starting_and_stopping_do_not_use_generators(new_watch: Callable[[], Watch]):
    before = bits([torch.get_rng_state(), repr(random.getstate()), repr(np.random.get_state())])
    with new_watch():
        pass
    assert bits([torch.get_rng_state(), repr(random.getstate()), repr(np.random.get_state())]) == before


class Calls(TorchFunctionMode):
    """Counts calls of torch's functions."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func.__name__)
        return func(*args, **(kwargs or {}))


class Operations(TorchDispatchMode):
    """Counts what these come down to."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("broken", [False, True], ids=["finite", "not finite"])
@pytest.mark.parametrize("mode", [Calls, Operations])
def test_modes_of_the_program_see_its_own_operations_only(
    mode: Callable[[], Calls | Operations], broken: bool, new_watch: Callable[[], Watch]
):
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def update() -> list[str]:
        x = torch.full((2, 4), torch.nan if broken else 1.0)
        with mode() as here:
            optimizer.zero_grad()
            F.cross_entropy(model(x), torch.tensor([0, 1])).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        return here.seen

    update()
    alone = update()
    with new_watch() as watch:
        assert update() == alone
        assert update() == alone
    assert not watch.report().problems
    assert watch.report().updates == 2


def test_a_traced_update_is_the_same_program(new_watch: Callable[[], Watch]):
    model = nn.Linear(2, 2)

    def update(x: Tensor) -> Any:
        model.weight.grad = model.bias.grad = None
        model(x).sum().backward()
        return model.weight.grad

    alone = make_fx(update)(torch.ones(1, 2)).code
    with new_watch() as watch:
        assert make_fx(update)(torch.ones(1, 2)).code == alone
    assert not watch.report().problems
