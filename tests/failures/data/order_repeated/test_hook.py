"""The indices that samplers draw are reported for the first batches of an epoch."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from trueloop.failures.data.order_repeated import MIN_INDICES, IndicesDrawn
from trueloop.failures.data.order_repeated.hook import HOOK
from trueloop.tracing.attach import Attachment
from trueloop.tracing.hooks.loaders import Loaders

DATA = TensorDataset(torch.arange(MIN_INDICES + 40))


@pytest.fixture
def attached():
    """An attachment of the hook and of that of loaders, and the reported indices."""
    drawn, before = [], _BaseDataLoaderIter._next_index
    attachment = Attachment(lambda stream, program: [Loaders(stream, program), HOOK(stream, program)])

    def listener(event):
        if isinstance(event, IndicesDrawn):
            drawn.append((event.epoch, event.indices))

    attachment.attach(listener)
    yield attachment, drawn
    attachment.detach(listener)
    assert not attachment.stream.problems
    assert _BaseDataLoaderIter._next_index is before


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch_size", [32, MIN_INDICES])
def test_the_first_indices_of_each_epoch(attached, workers, batch_size):
    _, drawn = attached
    loader = DataLoader(DATA, batch_size, shuffle=True, num_workers=workers)
    batches = [[batch[0].tolist() for batch in loader] for _ in range(2)]
    first = max(2, MIN_INDICES // batch_size)
    assert drawn == [(epoch, indices) for epoch in (0, 1) for indices in batches[epoch][:first]]


def test_epochs_that_begin_in_sampled_tracing_are_left_out(attached):
    attachment, drawn = attached
    attachment.sampling._stop_full()
    iterator = iter(DataLoader(DATA, 32, shuffle=True))  # requests full tracing, which was just stopped
    attachment.sampling._stop_full()
    next(iterator)
    attachment.sampling.start()
    next(iterator)
    assert not drawn


def test_keys_and_unshuffled_orders_are_left_out(attached):
    _, drawn = attached
    list(DataLoader(DATA, 32))
    list(DataLoader({key: torch.ones(1) for key in "abc"}, sampler=torch.utils.data.SubsetRandomSampler(["a", "b"])))
    assert not drawn
