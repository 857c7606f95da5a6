import math
import random
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trueloop.core.errors import InvalidConfig, InvalidData
from trueloop.core.protocols import BatchSource, StatefulPosition, is_padding
from trueloop.data.collate import pad_sequences
from trueloop.data.shards import Shards
from trueloop.data.streaming import ShardLoader


class NumberedSamples:
    """Shards whose sample i of shard s is the number 1000 s + i, with noise; remembers what was opened and read."""

    def __init__(self, lengths):
        self.lengths = lengths
        self.opened, self.read = [], []

    def __call__(self, shard):
        self.opened.append(shard)
        for i in range(self.lengths[shard]):
            self.read.append((shard, i))
            yield 1000 * shard + i, random.random() + float(torch.rand(()))


def shards(lengths, *, sizes_known=True, **settings):
    return Shards(range(len(lengths)), NumberedSamples(lengths), sizes=lengths if sizes_known else None, **settings)


def all_samples(lengths):
    return sorted(1000 * shard + i for shard, length in enumerate(lengths) for i in range(length))


def micro_batches_as_text(source, epoch, skip_updates=0):
    return [(str(micro.data), micro.closes_window) for micro in source.epoch(epoch, skip_updates)]


def windows(source, epoch, skip_updates=0):
    all_windows, window = [], []
    for micro in source.epoch(epoch, skip_updates):
        window += [] if is_padding(micro) else micro.data[0].tolist()
        if micro.closes_window:
            all_windows.append(window)
            window = []
    assert not window
    return all_windows


shard_lengths = st.lists(st.integers(0, 14), min_size=1, max_size=7).filter(any)
buffers = st.integers(0, 5)
interleaves = st.integers(1, 4)


def test_a_shard_loader_is_a_batch_source_with_a_position():
    source: BatchSource = ShardLoader(shards([5, 6]), effective_batch=4)
    assert isinstance(source, StatefulPosition)
    assert source.updates_per_epoch == 3
    assert ShardLoader(shards([5, 6], sizes_known=False), effective_batch=4).updates_per_epoch is None


@given(shard_lengths, buffers, interleaves, st.integers(1, 20), st.booleans(), st.data())
def test_windows_have_every_sample_once_for_any_micro_batch(lengths, buffer, width, effective, sizes_known, data):
    micro = data.draw(st.integers(1, effective))
    source = ShardLoader(
        shards(lengths, sizes_known=sizes_known, buffer=buffer, interleave=width),
        effective_batch=effective, micro_batch=micro, seed=3,
    )  # fmt: skip
    all_windows = windows(source, 1)
    total = sum(lengths)
    assert sorted(sample for window in all_windows for sample in window) == all_samples(lengths)
    assert [len(window) for window in all_windows] == [effective] * (total // effective) + [total % effective] * (
        total % effective > 0
    )
    all_micro_batches = ShardLoader(shards(lengths, buffer=buffer, interleave=width), effective_batch=effective, seed=3)
    assert windows(all_micro_batches, 1) == all_windows
    assert all_micro_batches.updates_per_epoch == len(all_windows)
    sizes = [len(micro_batch.data[0]) for micro_batch in source.epoch(1)]
    assert max(sizes) <= micro


@given(shard_lengths, buffers, interleaves, st.integers(1, 12), st.integers(1, 5), st.booleans(), st.data())
def test_processes_share_every_window(lengths, buffer, width, effective, processes, sizes_known, data):
    micro = data.draw(st.integers(1, effective))
    single_process = windows(
        ShardLoader(shards(lengths, buffer=buffer, interleave=width), effective_batch=effective), 2
    )
    ranks = [
        ShardLoader(
            shards(lengths, sizes_known=sizes_known, buffer=buffer, interleave=width),
            effective_batch=effective, micro_batch=micro, processes=processes, rank=rank,
        )
        for rank in range(processes)
    ]  # fmt: skip
    merged, window = [], []
    for parts in zip(*(list(loader.epoch(2)) for loader in ranks), strict=True):  # as many micro-batches on each rank
        assert len({part.closes_window for part in parts}) == 1
        for part in parts:
            own_samples = [] if is_padding(part) else part.data[0].tolist()
            assert len(part.data[0])
            assert len(own_samples) <= micro
            window += own_samples
        if parts[0].closes_window:
            merged.append(sorted(window))
            window = []
    assert merged == [sorted(samples) for samples in single_process]


@pytest.mark.parametrize(("processes", "sizes_known", "own_only"), [(2, True, True), (4, True, True), (3, True, False),
                                                              (2, False, False)])  # fmt: skip
def test_a_process_reads_only_its_own_shards_if_possible(processes, sizes_known, own_only):
    lengths = [7, 3, 9, 4, 12, 5, 2, 6]
    opened = []
    for rank in range(processes):
        data = shards(lengths, sizes_known=sizes_known)
        windows(ShardLoader(data, effective_batch=6, processes=processes, rank=rank), 0)
        opened.append(set(data.read.opened))
    counts = Counter(shard for own_samples in opened for shard in own_samples)
    assert counts == dict.fromkeys(range(8), 1 if own_only else processes)


@pytest.mark.parametrize("sizes_known", [True, False])
@pytest.mark.parametrize("workers", [1, 2])
def test_the_number_of_workers_does_not_change_the_batches(workers, sizes_known):
    lengths = [40, 0, 9, 23, 17]
    without_workers, with_workers = (
        ShardLoader(
            shards(lengths, sizes_known=sizes_known, buffer=6, interleave=3),
            effective_batch=8,
            micro_batch=3,
            seed=1,
            workers=w,
        )
        for w in (0, workers)
    )
    for epoch, skip in ((0, 0), (1, 4), (1, 12)):
        assert micro_batches_as_text(with_workers, epoch, skip) == micro_batches_as_text(without_workers, epoch, skip)
    assert without_workers.position_state() == with_workers.position_state()


def test_more_workers_than_lanes_change_nothing():
    one_lane = shards([9, 5], interleave=1)
    expected = micro_batches_as_text(ShardLoader(one_lane, effective_batch=4), 0)
    assert micro_batches_as_text(ShardLoader(one_lane, effective_batch=4, workers=2), 0) == expected


@given(shard_lengths, buffers, interleaves, st.integers(1, 9), st.booleans(), st.booleans(), st.data())
def test_resuming_at_any_window_changes_nothing(lengths, buffer, width, effective, sizes_known, drop_last, data):
    options_ = {"effective_batch": effective, "micro_batch": max(1, effective // 2), "drop_last": drop_last}
    make_shards = lambda: shards(lengths, sizes_known=sizes_known, buffer=buffer, interleave=width)  # noqa: E731
    if drop_last and sum(lengths) < options_["micro_batch"]:
        return
    source, all_micro_batches, states = ShardLoader(make_shards(), **options_), [], [None]
    for micro in source.epoch(4):
        all_micro_batches.append((str(micro.data), micro.closes_window))
        if micro.closes_window:
            states.append(source.position_state())
    closed = [0] + [i + 1 for i, (_, closes) in enumerate(all_micro_batches) if closes]
    windows_done = data.draw(st.integers(0, len(closed) - 1))
    skipping, restored = ShardLoader(make_shards(), **options_), ShardLoader(make_shards(), **options_)
    assert (
        micro_batches_as_text(skipping, 4, windows_done) == all_micro_batches[closed[windows_done] :]
    )  # reads and drops where sizes are unknown
    if not sizes_known and windows_done:
        restored.load_position_state(states[windows_done])
        assert restored.position_state() == states[windows_done]  # a checkpoint before the next window loses nothing
        assert micro_batches_as_text(restored, 4, windows_done) == all_micro_batches[closed[windows_done] :]
        assert micro_batches_as_text(restored, 5) == micro_batches_as_text(source, 5)
    with pytest.raises(InvalidData, match="updates cannot be skipped"):
        micro_batches_as_text(ShardLoader(make_shards(), **options_), 4, len(closed))


@pytest.mark.parametrize("sizes_known", [True, False])
def test_a_resumed_epoch_reads_only_the_current_shards(sizes_known):
    lengths, windows_done = (
        [30] * 12,
        30,
    )  # 30 windows of 8: 240 samples in 3 lanes of 120, so 2 shards and 20 samples of each
    first = shards(lengths, sizes_known=sizes_known, interleave=3, buffer=5)
    source = ShardLoader(first, effective_batch=8)
    epoch = source.epoch(0)
    for _ in range(windows_done):
        next(epoch)
    expected = [str(micro.data) for micro in epoch]
    data = shards(lengths, sizes_known=sizes_known, interleave=3, buffer=5)
    resumed = ShardLoader(data, effective_batch=8)
    if not sizes_known:
        interrupted = ShardLoader(first, effective_batch=8)
        epoch = interrupted.epoch(0)
        for _ in range(windows_done):
            next(epoch)
        resumed.load_position_state(interrupted.position_state())
    remaining = resumed.epoch(0, windows_done)
    assert next(remaining).data is not None
    lanes = lanes_of(resumed)
    assert sorted(data.read.opened) == sorted(lane[2] for lane in lanes)
    assert len(data.read.read) <= 3 * (20 + 5 + 1) + 8  # the place, the buffer, one batch
    assert [str(micro.data) for micro in remaining] == expected[1:]
    assert set(data.read.opened) == {shard for lane in lanes for shard in lane[2:]}


def lanes_of(loader):
    return loader._shard_epoch(0).lanes


@given(shard_lengths, st.integers(1, 9), st.integers(1, 9), interleaves, st.booleans())
def test_drop_last_drops_the_partial_micro_batch(lengths, effective, micro, width, sizes_known):
    micro = min(micro, effective)
    total = sum(lengths)
    make = lambda sizes_known: ShardLoader(  # noqa: E731
        shards(lengths, sizes_known=sizes_known, interleave=width),
        effective_batch=effective,
        micro_batch=micro,
        drop_last=True,
    )
    expected = total % effective
    sample_count = total - expected % micro
    if not sample_count:
        with pytest.raises(InvalidData, match="drop_last"):
            make(True)
        return
    source = make(sizes_known)
    sizes = [len(batch.data[0]) for batch in source.epoch(0)]
    assert sum(sizes) == sample_count
    assert sum(batch.closes_window for batch in source.epoch(0)) == math.ceil(sample_count / effective)
    assert source.updates_per_epoch in (None, math.ceil(sample_count / effective))


def test_epochs_differ_and_can_be_repeated():
    source = ShardLoader(shards([30] * 4), effective_batch=16)
    first, second = windows(source, 0), windows(source, 1)
    assert first != second
    assert windows(source, 0) == first
    assert windows(ShardLoader(shards([30] * 4), effective_batch=16, seed=1), 0) != first


def test_without_shuffling_the_order_is_that_of_the_shards():
    source = ShardLoader(shards([3, 2, 4]), effective_batch=4, shuffle=False)
    assert windows(source, 5) == [[0, 1, 2, 1000], [1001, 2000, 2001, 2002], [2003]]


def test_several_shards_are_mixed_in_each_window():
    all_windows = windows(ShardLoader(shards([40] * 8, interleave=4, buffer=0), effective_batch=20), 0)
    assert all(len({sample // 1000 for sample in window}) == 4 for window in all_windows)


def test_indices_count_over_all_shards_if_sizes_are_known():
    lengths = [3, 4, 2]
    for micro in ShardLoader(shards(lengths), effective_batch=4).epoch(0):
        starts = {0: 0, 1: 3, 2: 7}
        assert micro.indices == [starts[s // 1000] + s % 1000 for s in micro.data[0].tolist()]
    assert {micro.indices for micro in ShardLoader(shards(lengths, sizes_known=False), effective_batch=4).epoch(0)} == {
        None
    }


@pytest.mark.parametrize("workers", [0, 1])
def test_the_global_generators_do_not_change(workers):
    source = ShardLoader(shards([9, 9], buffer=3), effective_batch=4, workers=workers)
    before = random.getstate(), torch.get_rng_state().tolist()
    for _ in source.epoch(0):
        assert (random.getstate(), torch.get_rng_state().tolist()) == before
    assert (random.getstate(), torch.get_rng_state().tolist()) == before


def test_seeding_can_be_switched_off():
    torch.manual_seed(0)
    source = ShardLoader(shards([4]), effective_batch=4, seed_samples=False)
    first, second = micro_batches_as_text(source, 0), micro_batches_as_text(source, 0)
    assert first != second  # the noise is the global generators'


def test_a_custom_collate_draws_the_same_numbers_again():
    def noisy(samples):
        return torch.tensor([number for number, _ in samples]) + torch.rand(())

    a, b = (micro_batches_as_text(ShardLoader(shards([9]), effective_batch=4, collate=noisy), 0) for _ in range(2))
    assert a == b
    assert len(set(a)) == 3


def test_sequences_are_padded():
    data = Shards([5, 3], lambda longest: (torch.ones(n) for n in range(1, longest)), sizes=[4, 2])
    for micro in ShardLoader(data, effective_batch=4, collate=pad_sequences).epoch(0):
        padded, mask = micro.data
        assert padded.sum(1).tolist() == mask.sum(1).tolist()


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_that_cannot_be_collated_give_a_clear_message(workers):
    data = Shards(["a"], lambda _: (torch.ones(1 + i % 2) for i in range(4)), buffer=0)
    with pytest.raises(InvalidData) as caught:
        list(ShardLoader(data, effective_batch=4, workers=workers).epoch(0))
    assert str(caught.value).splitlines()[0] == "Sample 1 of the batch is float32[2]; sample 0 is float32[1]."
    assert "[(0, 0), (0, 1), (0, 2), (0, 3)]" in str(caught.value)


@pytest.mark.parametrize("workers", [0, 1])
def test_shards_without_samples_are_refused(workers):
    data = Shards([1, 2], lambda _: ())
    with pytest.raises(InvalidData, match="hold no samples"):
        list(ShardLoader(data, effective_batch=4, workers=workers).epoch(0))


def test_fast_data_gets_no_workers():
    source = ShardLoader(shards([9, 5]), effective_batch=4, workers=None)
    assert micro_batches_as_text(source, 0) == micro_batches_as_text(ShardLoader(shards([9, 5]), effective_batch=4), 0)
    assert source.workers == 0


@pytest.mark.parametrize("changed", [{"seed": 9}, {"buffer": 2}, {"interleave": 1}, {"lengths": [9] * 4}])
def test_a_position_of_another_order_is_refused(changed):
    def make(*, lengths=(9, 9, 9), seed=0, **settings):
        return ShardLoader(shards(list(lengths), sizes_known=False, **settings), effective_batch=4, seed=seed)

    source = make()
    next(source.epoch(0))
    state = source.position_state()
    make().load_position_state(state)
    with pytest.raises(InvalidData, match="position in the data was saved with"):
        make(**changed).load_position_state(state)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": -1}, "workers is -1"),
        ({"micro_batch": 9}, "micro_batch is 9"),
        ({"effective_batch": 0}, "effective_batch is 0"),
        ({"rank": 1}, "rank is 1"),
    ],
)
def test_invalid_settings_are_refused(options, message):
    with pytest.raises(InvalidConfig, match=message):
        ShardLoader(shards([5]), **{"effective_batch": 4, **options})


@settings(max_examples=20)
@given(shard_lengths, st.integers(1, 9), st.integers(0, 3))
def test_a_worker_changes_no_batch(lengths, effective, skip):
    without_workers, with_workers = (
        ShardLoader(
            shards(lengths, sizes_known=False, interleave=2, buffer=3), effective_batch=effective, workers=workers
        )
        for workers in (0, 1)
    )
    skip = min(skip, math.ceil(sum(lengths) / effective))
    assert micro_batches_as_text(with_workers, 0, skip) == micro_batches_as_text(without_workers, 0, skip)
