"""Models in DistributedDataParallel: their replicated parameters, their rounds, and the comparison of ranks."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trueloop.tracing.events import ModelReplicated, RanksCompared, ReplicaStepped
from trueloop.tracing.hooks.replicas import COMPARISON_INTERVAL, _comparison_number, _is_compared

pytestmark = pytest.mark.filterwarnings("ignore:.*broadcast_buffers")


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def names(refs):
    return sorted(ref.name.removeprefix("module.") for ref in refs)


def backward(model: nn.Module) -> None:
    model(torch.randn(4, 3)).square().mean().backward()


def test_a_wrapper_is_reported_with_its_parameters(attached):
    _, events_of = attached
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
    net[2].bias.requires_grad_(False)
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, ["0.bias"])
    wrapper = DistributedDataParallel(net)
    backward(wrapper)
    (event,) = events_of(ModelReplicated)
    assert (event.wrapper.kind, event.module.kind, event.group_size) == ("DistributedDataParallel", "Sequential", 1)
    assert names(event.parameters) == ["0.weight", "1.bias", "1.weight", "2.weight"]
    assert event.location.source_location.path == __file__


def test_an_earlier_wrapper_is_reported_at_its_first_call():
    from trueloop.tracing.attach import Attachment
    from trueloop.tracing.hooks import all_hooks

    wrapper = DistributedDataParallel(nn.Linear(3, 1))
    events, attachment = [], Attachment(all_hooks)
    listener = events.append
    attachment.attach(listener)
    with torch.no_grad():
        wrapper(torch.randn(4, 3))
    assert not [each for each in events if isinstance(each, ModelReplicated)]
    backward(wrapper)
    attachment.detach(listener)
    assert len([each for each in events if isinstance(each, ModelReplicated)]) == 1


def test_a_step_reports_its_forwards_and_collectives(attached):
    _, events_of = attached
    wrapper = DistributedDataParallel(nn.Linear(3, 1))
    other = nn.Linear(3, 1)
    optimizer = torch.optim.SGD([*wrapper.parameters(), *other.parameters()], lr=0.1)
    backward(wrapper)
    optimizer.step()
    optimizer.zero_grad()
    backward(wrapper.module)
    optimizer.step()
    optimizer.zero_grad()
    backward(wrapper.module)
    dist.all_reduce(wrapper.module.weight.grad)
    optimizer.step()
    optimizer.zero_grad()
    with wrapper.no_sync():
        backward(wrapper)
    optimizer.step()
    torch.optim.SGD(other.parameters(), lr=0.1).step()
    events = events_of(ReplicaStepped)
    assert [(each.forwards, each.collectives) for each in events] == [(1, 1), (0, 0), (0, 1), (1, 0)]
    assert all(names(each.parameters) == ["bias", "weight"] for each in events)


def test_a_step_within_a_step_is_part_of_it(attached):
    _, events_of = attached

    class Outer(torch.optim.Optimizer):
        def __init__(self, inner):
            super().__init__(inner.param_groups, {})
            self.inner = inner

        def step(self, closure=None):
            self.inner.step()

    wrapper = DistributedDataParallel(nn.Linear(3, 1))
    optimizer = Outer(torch.optim.SGD(wrapper.parameters(), lr=0.1))
    backward(wrapper)
    optimizer.step()
    assert len(events_of(ReplicaStepped)) == 1


def test_nothing_is_kept_alive_and_a_wrapper_can_still_be_copied(attached):
    import gc
    import weakref

    wrapper = DistributedDataParallel(nn.Linear(3, 1))
    optimizer = torch.optim.SGD(wrapper.parameters(), lr=0.1)
    backward(wrapper)
    optimizer.step()
    assert copy.deepcopy(wrapper.module).weight.equal(wrapper.module.weight)
    gone = weakref.ref(wrapper.module)
    del wrapper, optimizer
    gc.collect()
    assert gone() is None


def test_a_single_process_is_not_compared(attached):
    _, events_of = attached
    wrapper = DistributedDataParallel(nn.Linear(3, 1))
    optimizer = torch.optim.SGD(wrapper.parameters(), lr=0.1)
    for _ in range(4):
        backward(wrapper)
        optimizer.step()
    assert events_of(RanksCompared) == []


def test_comparisons_become_less_frequent():
    rounds = [each for each in range(1, 5 * COMPARISON_INTERVAL) if _is_compared(each)]
    assert rounds == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3072, 4096]
    assert [_comparison_number(each) - _comparison_number(1) for each in rounds] == [*range(10), 11, 12, 13, 14]
