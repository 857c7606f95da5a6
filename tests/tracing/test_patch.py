"""Replacements that a program cannot distinguish from the originals."""

from __future__ import annotations

import inspect
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader, IterableDataset

from trueloop.failures.load import catalogue
from trueloop.sanitizer.dispatch import WatchedFailure
from trueloop.sanitizer.watch import Watch
from trueloop.tracing.patch import Patches

Warned = list[tuple[str, int, str]]


def net() -> nn.Linear:
    return nn.Linear(2, 1)


def sgd() -> torch.optim.SGD:
    return torch.optim.SGD(net().parameters(), lr=0.1)


def scheduler_first() -> None:
    StepLR(sgd(), 2).step()


def epoch_given() -> None:
    ReduceLROnPlateau(sgd()).step(1.0, 2)


def state_by_position() -> None:
    net().state_dict({})  # pyright: ignore[reportCallIssue]


def old_gradients() -> None:
    torch.autograd.backward(torch.ones(1, requires_grad=True) * 1, grad_variables=[torch.ones(1)])


def other_shape() -> None:
    F.mse_loss(net()(torch.ones(3, 2)), torch.ones(3))


def other_shape_in_a_module() -> None:
    nn.SmoothL1Loss()(net()(torch.ones(3, 2)), torch.ones(3))


def mean_of_a_divergence() -> None:
    F.kl_div(net()(torch.ones(3, 2)), torch.ones(3, 1), reduction="mean")


def nothing_to_clip() -> None:
    nn.utils.clip_grad_norm_((each for each in ()), 1.0)


def parameter_twice() -> None:
    weight = nn.Parameter(torch.ones(1))
    torch.optim.SGD([weight, weight], lr=0.1)


class TooLong(IterableDataset[Tensor]):
    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Tensor]:
        return iter(torch.ones(3))


def wrong_length() -> None:
    loader = DataLoader(TooLong(), batch_size=1)
    assert len(loader) == 1
    for _ in loader:
        pass


def length_never_requested() -> None:
    for _ in DataLoader(TooLong(), batch_size=1):
        pass


class Fused(torch.optim.SGD):
    _step_supports_amp_scaling = True

    def step(self, closure: Any = None, grad_scaler: Any = None) -> None:
        """Take the scaler as an argument, which PyTorch has deprecated."""


def scaler_handed_on() -> None:
    weight = nn.Parameter(torch.ones(1))
    scaler, optimizer = torch.amp.GradScaler("cpu"), Fused([weight], lr=0.1)
    scaler.scale((weight * 1).sum()).backward()
    scaler.step(optimizer)


class Deprecated(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        warnings.warn("say what the program says", FutureWarning, stacklevel=4)
        return x


def forward_of_the_programs_own() -> None:
    Deprecated()(torch.ones(1))


SILENT = (length_never_requested,)
NEWER = (nothing_to_clip,)  # torch 2.6 says nothing
CALLS: tuple[Callable[[], None], ...] = (
    scheduler_first, epoch_given, state_by_position, old_gradients, other_shape, other_shape_in_a_module,
    mean_of_a_divergence, nothing_to_clip, parameter_twice, wrong_length, length_never_requested, scaler_handed_on,
    forward_of_the_programs_own,
)  # fmt: skip


def warned(call: Callable[[], None]) -> Warned:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [(each.filename, each.lineno, str(each.message)[:40]) for each in caught]  # behind that, an address


def watch() -> Watch:
    return Watch([WatchedFailure(entry.failure, entry.slug) for entry in catalogue().values()])


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_warnings_are_those_of_the_program_alone_and_name_the_same_lines(call: Callable[[], None]):
    alone = warned(call)
    assert bool(alone) == (call not in SILENT) or call in NEWER
    with watch():
        watched = warned(call)
    assert watched == alone


def test_a_swapped_function_keeps_its_metadata():
    before = inspect.signature(F.mse_loss), inspect.getsource(F.mse_loss), F.mse_loss.__code__
    function = F.mse_loss
    with watch():
        assert F.mse_loss is function
        assert F.mse_loss.__code__ is not before[2]
        assert (inspect.signature(F.mse_loss), inspect.getsource(F.mse_loss)) == before[:2]
    assert F.mse_loss.__code__ is before[2]
    assert not hasattr(F.mse_loss, "__wrapped__")


def test_a_running_swapped_function_finishes_after_restoring():
    """Another thread may do so at any moment; here it is done as soon as the call has begun."""
    patches, before, called = Patches(), F.mse_loss.__code__, list[str]()

    def restore(frame: FrameType, event: str, arg: Any) -> None:
        if event == "call" and frame.f_code.co_name == "mse_loss" and frame.f_code is not before:
            called.append(event)
            patches.restore()

    patches.swap_code(F.mse_loss, _wrapped)
    traced = sys.gettrace()
    sys.settrace(restore)
    try:
        loss = F.mse_loss(torch.ones(2), torch.zeros(2))
    finally:
        sys.settrace(traced)
    assert called == ["call"]
    assert F.mse_loss.__code__ is before
    assert loss == 1


def test_no_replacement_has_a_real_file_name():
    with watch():
        for owner, name in ((StepLR, "step"), (nn.Module, "__call__"), (torch, "save"), (DataLoader, "__iter__")):
            assert not os.path.exists(getattr(owner, name).__code__.co_filename)


def test_a_method_makes_one_replacement_of_each_original():
    class Owner:
        def call(self) -> str:
            return "call"

    class Hook:
        made = 0

        def replacement(self, original: Callable[..., str]) -> Callable[..., str]:
            self.made += 1
            return lambda owner: f"replaced {original(owner)}"

    hook, patches, original, found = Hook(), Patches(), Owner.call, list[Any]()
    for _ in range(3):
        patches.replace(Owner, "call", hook.replacement)
        found.append(Owner.call)
        assert Owner().call() == "replaced call"
        patches.restore()
        assert Owner.call is original
    assert (hook.made, len(set(found))) == (1, 1)
    Owner.call = lambda self: "other"  # the program replaces it itself
    patches.replace(Owner, "call", hook.replacement)
    assert (Owner().call(), hook.made) == ("replaced other", 2)
    patches.restore()


def test_restoring_continues_after_an_interrupt():
    class Owner:
        first = second = third = staticmethod(len)

    before = dict(vars(Owner))
    patches = Patches()
    for name in ("first", "second", "third"):
        patches.replace(Owner, name, _wrapped)

    class Stubborn:
        asked = 0

        def remove(self) -> None:
            self.asked += 1
            if self.asked == 1:
                raise KeyboardInterrupt

    patches.add_handle(Stubborn())
    patches.replace(Owner, "first", _wrapped)
    with pytest.raises(KeyboardInterrupt):
        patches.restore()
    assert vars(Owner)["third"] is not before["third"]
    patches.restore()
    assert {name: vars(Owner)[name] for name in ("first", "second", "third")} == {
        name: before[name] for name in ("first", "second", "third")
    }


def _wrapped(original: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any) -> Any:
        return original(*args)

    return wrapper
