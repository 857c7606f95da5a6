import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from trueloop.data.stateful_source import iterate_next_epoch, stateful_part


class StatefulCounter(IterableDataset):
    """Saves its position; after its end it is exhausted once, and then restarts."""

    def __init__(self, n=5):
        self.n, self.at, self.loaded = n, 0, False

    def __iter__(self):
        self.at = self.at if self.loaded else 0
        self.loaded = False
        while self.at < self.n:
            self.at += 1
            yield self.at

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at, self.loaded = state["at"], True


class RestartsAtEnd(StatefulCounter):
    """Like torchdata's StatefulDataLoader: a state saved at the end of an epoch starts the next one."""

    def load_state_dict(self, state):
        super().load_state_dict({"at": state["at"] % self.n})


def test_the_stateful_part_is_the_iterable_or_its_dataset():
    data = StatefulCounter()
    assert stateful_part(data) is data
    assert stateful_part(DataLoader(data)) is data
    assert stateful_part(DataLoader(data, num_workers=1)) is None  # the worker's copy would move, not this one
    assert stateful_part([1, 2]) is None
    assert stateful_part(DataLoader(TensorDataset(torch.ones(3)))) is None
    assert stateful_part(None) is None


def test_the_epoch_after_an_end_is_complete():
    for kind in (StatefulCounter, RestartsAtEnd):
        data = kind()
        assert list(data) == [1, 2, 3, 4, 5]
        state, other = data.state_dict(), kind()
        before = torch.get_rng_state()
        assert list(iterate_next_epoch(other, other, state)) == [1, 2, 3, 4, 5]
        assert torch.equal(torch.get_rng_state(), before)


def test_opening_an_epoch_twice_draws_random_numbers_once():
    data = StatefulCounter()
    loader = DataLoader(data, batch_size=2)
    torch.manual_seed(1)
    list(loader)  # draws a base seed
    uninterrupted = torch.get_rng_state()
    torch.manual_seed(1)
    list(iterate_next_epoch(loader, data, {"at": 5}))
    assert torch.equal(torch.get_rng_state(), uninterrupted)
