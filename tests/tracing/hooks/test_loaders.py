"""Batches of DataLoaders are reported correctly, and reporting them changes nothing."""

import gc
import weakref

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, TensorDataset

from trueloop.tracing.attach import Attachment
from trueloop.tracing.events import BatchLoaded, LoaderExhausted, LoaderStarted, SeedSet
from trueloop.tracing.hooks.loaders import Loaders
from trueloop.tracing.hooks.seeds import Seeds
from trueloop.tracing.program_state import ProgramState


@pytest.fixture
def watched():
    """An attachment of this hook only, and the events it reports."""
    events = []
    attachment = Attachment(lambda stream, program: [Seeds(stream, program), Loaders(stream, program)])

    def listener(event):
        assert isinstance(attachment.program, ProgramState)
        names = ("location", *(name for name in event.__slots__ if name not in {"live_loader", "batch"}))
        events.append((type(event), {name: getattr(event, name) for name in names}))

    attachment.attach(listener)
    yield attachment, events
    attachment.detach(listener)
    assert not attachment.stream.problems


def of(events, kind):
    return [fields for event_type, fields in events if event_type is kind]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(10.0))


DATA = TensorDataset(torch.arange(10.0))
KINDS = {
    "plain": lambda: DataLoader(DATA, 2),
    "shuffled": lambda: DataLoader(DATA, 2, shuffle=True),
    "workers": lambda: DataLoader(DATA, 2, num_workers=2),
    "kept workers": lambda: DataLoader(DATA, 2, num_workers=1, persistent_workers=True),
    "batch sampler": lambda: DataLoader(DATA, batch_sampler=BatchSampler(RandomSampler(DATA), 2, drop_last=False)),
    "stream": lambda: DataLoader(Stream(), 2),
    "no batches": lambda: DataLoader(DATA, batch_size=None),
}


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_every_batch_of_every_epoch(watched, make):
    attachment, events = watched
    loader = make()
    batches = 10 if loader.batch_size is None and loader.batch_sampler is None else 5
    for _ in range(2):
        assert len(list(loader)) == batches
    assert [fields["epoch"] for fields in of(events, LoaderStarted)] == [0, 1]
    assert [(f["epoch"], f["index"]) for f in of(events, BatchLoaded)] == [
        (e, i) for e in (0, 1) for i in range(batches)
    ]
    assert [(f["epoch"], f["batches"]) for f in of(events, LoaderExhausted)] == [(0, batches), (1, batches)]
    assert attachment.program.batch == 2 * batches


def test_every_batch_in_sampled_tracing_as_long_as_a_listener_needs_it(watched):
    attachment, events = watched
    iterator = iter(DataLoader(DATA, 2))
    attachment.sampling._stop_full()
    needs_batches = of(events, LoaderStarted)[0]["needs_batches"]
    next(iterator)
    needs_batches.add("labels")
    next(iterator), next(iterator)
    needs_batches.clear()
    next(iterator)
    assert [fields["index"] for fields in of(events, BatchLoaded)] == [1, 2]


def test_a_break_emits_no_end_and_the_next_epoch_starts(watched):
    _, events = watched
    loader = DataLoader(DATA, 2)
    for _ in loader:
        break
    next(iter(loader))
    assert not of(events, LoaderExhausted)
    assert [fields["index"] for fields in of(events, BatchLoaded)] == [0, 0]


def test_a_counting_reader_ends_a_pass_with_the_last_batch(watched):
    attachment, events = watched
    loader, other = DataLoader(DATA, 5), DataLoader(DATA, 2)
    first = iter(loader)
    next(first), next(first)
    assert not of(events, LoaderExhausted), "its last batch is still being used"
    second = iter(other)
    ends = [kind for kind, _ in events if kind in {LoaderExhausted, LoaderStarted}]
    assert ends == [LoaderStarted, LoaderExhausted, LoaderStarted]
    for _ in range(5):
        next(second)
    with pytest.raises(StopIteration):
        next(first)
    assert [(f["loader"].name, f["batches"]) for f in of(events, LoaderExhausted)] == [
        ("DataLoader", 2), ("DataLoader 2", 5)
    ]  # fmt: skip
    with pytest.raises(StopIteration):
        next(second)
    next(iter(other)), next(iter(DataLoader(Stream(), 10)))
    assert len(of(events, LoaderExhausted)) == 2
    for _ in zip(range(2), loader, strict=False):
        pass
    for farewell in attachment.stream.on_detach:
        farewell()
    assert len(of(events, LoaderExhausted)) == 3


def test_locations_are_user_lines(watched):
    _, events = watched
    loader = DataLoader(DATA, 5)
    assert not of(events, LoaderStarted)
    for _ in loader:
        pass
    started = of(events, LoaderStarted)[0]
    assert started["location"].source_location.path == started["made_at"].source_location.path == __file__
    assert started["made_at"].source_location.line < started["location"].source_location.line


def test_an_iterator_created_before_is_traced():
    iterator = iter(DataLoader(DATA, 5))
    events = []
    attachment = Attachment(lambda stream, program: [Loaders(stream, program)])
    listener = lambda event: events.append((type(event), event.index if isinstance(event, BatchLoaded) else None))  # noqa: E731
    attachment.attach(listener)
    assert len(list(iterator)) == 2
    attachment.detach(listener)
    assert [event for event in events if event[0] is BatchLoaded] == [(BatchLoaded, 0), (BatchLoaded, 1)]


def test_nothing_is_kept_alive(watched):
    loader = DataLoader(TensorDataset(torch.randn(64, 16)), 8, shuffle=True)
    batches = [weakref.ref(batch[0]) for batch in loader]
    dead = weakref.ref(loader), weakref.ref(loader.dataset)
    del loader
    gc.collect()
    assert not any(batch() is not None for batch in batches)
    assert [ref() for ref in dead] == [None, None]


def test_random_numbers_and_pytorch_are_unchanged():
    before = DataLoader.__init__, DataLoader.__iter__, torch.manual_seed, vars(DataLoader).keys()

    def draw():
        torch.manual_seed(3)
        return [batch[0].tolist() for batch in DataLoader(DATA, 2, shuffle=True)], torch.rand(1).item()

    bare = draw()
    attachment = Attachment(lambda stream, program: [Seeds(stream, program), Loaders(stream, program)])
    listener = lambda event: None  # noqa: E731
    attachment.attach(listener)
    seen = draw()
    attachment.detach(listener)
    assert seen == bare
    assert before == (DataLoader.__init__, DataLoader.__iter__, torch.manual_seed, vars(DataLoader).keys())


def test_a_constant_seed_while_loading_samples(watched):
    _, events = watched

    def collate(rows):
        torch.manual_seed(5)
        return torch.stack([row[0] for row in rows])

    list(DataLoader(TensorDataset(torch.randn(64)), 2, collate_fn=collate))
    seeds = [each for each in of(events, SeedSet) if each["loader"] is not None]  # without that of the first batch
    assert {(each["generator"], each["seed"], each["loader"].kind) for each in seeds} == {("torch", 5, "DataLoader")}
    assert [(each["times"], each["batches"]) for each in seeds] == [(times, times) for times in (1, 2, 4, 8, 16)]
