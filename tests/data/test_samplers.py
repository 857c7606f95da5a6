import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from trueloop.core.arithmetic import plan
from trueloop.core.errors import InvalidConfig, InvalidData
from trueloop.data.order import WeightedOrder, order
from trueloop.data.samplers import OrderSampler, WindowSampler

sizes = st.integers(1, 300)
processes_counts = st.integers(1, 7)


@given(sizes, processes_counts, st.integers(0, 5), st.data())
def test_ranks_split_the_epoch_without_overlap_or_gap(n, processes, epoch, data):
    start = data.draw(st.integers(0, n))
    shares = []
    for rank in range(processes):
        sampler = OrderSampler(n, seed=4, processes=processes, rank=rank)
        sampler.set_epoch(epoch, start)
        shares.append(list(sampler))
        assert len(sampler) == len(shares[-1])
        assert (
            shares[-1] == order(n, 4, epoch).take(0, n)[rank::processes].tolist()[len(range(rank, start, processes)) :]
        )
    rest = order(n, 4, epoch).take(start, n).tolist()
    assert sorted(index for share in shares for index in share) == sorted(rest)


@given(sizes, processes_counts)
def test_with_drop_last_every_rank_has_the_same_number(n, processes):
    shares = [list(OrderSampler(n, processes=processes, rank=r, drop_last=True)) for r in range(processes)]
    assert {len(share) for share in shares} == {n // processes}
    assert len({index for share in shares for index in share}) == n // processes * processes


def test_samplers_continue_after_a_block():
    n = 3 * 2**16 + 5
    shares = [list(OrderSampler(n, processes=3, rank=rank)) for rank in range(3)]
    assert shares == [order(n, 0, 0).take(0, n)[rank::3].tolist() for rank in range(3)]
    batches = list(WindowSampler(n, effective_batch=1000, micro_batch=300))
    assert [i for batch in batches for i in batch] == order(n, 0, 0).take(0, n).tolist()


def test_every_sampler_works_with_a_plain_loader():
    data = TensorDataset(torch.arange(100))
    sequential = torch.cat(
        [x for (x,) in DataLoader(data, batch_size=8, sampler=OrderSampler(data, order="sequential"))]
    )
    assert sequential.tolist() == list(range(100))
    sampler = OrderSampler(data, seed=1)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    epochs = []
    for epoch in (0, 1):
        sampler.set_epoch(epoch)
        epochs.append(torch.cat([x for (x,) in loader]).tolist())
    assert [sorted(e) for e in epochs] == [list(range(100))] * 2
    assert epochs[0] != epochs[1]
    weighted = OrderSampler(data, order=[0.0] * 99 + [1.0])
    assert set(weighted) == {99}
    assert len(weighted) == 100
    windows = DataLoader(data, batch_sampler=WindowSampler(data, effective_batch=32, micro_batch=10))
    assert [len(x) for (x,) in windows] == [10, 10, 10, 2] * 3 + [4]
    assert len(windows) == 13


def brute_force(n: int, effective: int, step: int, drop_last: bool) -> list[tuple[int, int, bool]]:
    """Split an epoch into windows and micro-batches, one position after the other."""
    cuts = []
    for window in range(0, n, effective):
        stop = min(window + effective, n)
        inner = []
        for start in range(window, stop, step):
            end = min(start + step, stop)
            full = end == min(start + step, window + effective)
            if full or not drop_last:
                inner.append((start, end))
        cuts += [(a, b, (a, b) == inner[-1]) for a, b in inner]
    return cuts


@given(
    n=sizes,
    effective=st.integers(1, 80),
    processes=processes_counts,
    epoch=st.integers(0, 3),
    drop=st.booleans(),
    data=st.data(),
)
def test_windows_have_the_same_samples_for_any_micro_batch(n, effective, processes, epoch, drop, data):
    micro = data.draw(st.none() | st.integers(1, effective))
    step = min((micro or -(-effective // processes)) * processes, effective)
    expected = brute_force(n, effective, step, drop)
    options = {"effective_batch": effective, "micro_batch": micro, "seed": 2, "processes": processes, "drop_last": drop}
    if not expected:
        with pytest.raises(InvalidData, match="drop_last"):
            WindowSampler(n, **options)
        return
    ranks = [WindowSampler(n, rank=rank, **options) for rank in range(processes)]
    per_rank = [list(sampler.micro_batches(epoch)) for sampler in ranks]
    assert {len(cuts) for cuts in per_rank} == {len(expected)} == {ranks[0].micro_batches_per_epoch}
    shuffled = order(n, 2, epoch).take(0, n)
    for (start, stop, closes), *parts in zip(expected, *per_rank, strict=True):
        assert {part.closes_window for part in parts} == {closes}
        for rank, part in enumerate(parts):
            assert torch.equal(part.indices_B, shuffled[start:stop][rank::processes])
            assert torch.equal(part.padding_1, shuffled[start : start + (not len(part.indices_B))])
    assert ranks[0].updates_per_epoch == sum(closes for _, _, closes in expected)
    assert ranks[0].examples_per_epoch == sum(stop - start for start, stop, _ in expected)


@given(n=sizes, effective=st.integers(1, 80), processes=processes_counts, data=st.data())
def test_skipping_updates_equals_reading_and_dropping_them(n, effective, processes, data):
    rank = data.draw(st.integers(0, processes - 1))
    micro = data.draw(st.integers(1, effective))
    sampler = WindowSampler(n, effective_batch=effective, micro_batch=micro, processes=processes, rank=rank)
    skip = data.draw(st.integers(0, sampler.updates_per_epoch))
    full = [(skipped.indices_B.tolist(), skipped.closes_window) for skipped in sampler.micro_batches(1)]
    closing = [i for i, (_, closes) in enumerate(full) if closes]
    rest = full[closing[skip - 1] + 1 :] if skip else full
    assert [(skipped.indices_B.tolist(), skipped.closes_window) for skipped in sampler.micro_batches(1, skip)] == rest
    sampler.set_epoch(1, skip)
    assert list(sampler) == [indices for indices, _ in rest if indices]
    assert len(sampler) == len(list(sampler))


@given(
    n=st.integers(1, 2000),
    batch=st.integers(1, 40),
    accumulate=st.integers(1, 5),
    processes=st.integers(1, 4),
    drop=st.booleans(),
)
def test_the_numbers_of_updates_and_batches_match_the_epoch(n, batch, accumulate, processes, drop):
    sizes = {"processes": processes, "drop_last": drop}
    effective = batch * accumulate * processes
    if drop and n < batch * processes:
        with pytest.raises(InvalidConfig):
            plan(dataset=n, batch=batch, epochs=1, accumulate=accumulate, **sizes)
        with pytest.raises(InvalidData):
            WindowSampler(n, effective_batch=effective, micro_batch=batch, **sizes)
        return
    planned = plan(dataset=n, batch=batch, epochs=1, accumulate=accumulate, **sizes)
    sampler = WindowSampler(n, effective_batch=effective, micro_batch=batch, **sizes)
    assert sampler.micro_batches_per_epoch == planned.iterations_per_epoch
    assert sampler.updates_per_epoch == planned.updates_per_epoch
    assert sampler.examples_per_epoch == planned.examples_per_epoch


def test_skipping_in_a_huge_epoch_computes_no_skipped_index():
    sampler = WindowSampler(10**15, effective_batch=1000, micro_batch=10)
    skipped = next(sampler.micro_batches(0, 10**11))
    assert skipped.indices_B.tolist() == order(10**15, 0, 0).take(10**14, 10**14 + 10).tolist()


def test_a_weighted_epoch_has_one_draw_per_weight():
    sampler = WindowSampler(10, effective_batch=4, order=WeightedOrder.from_weights([1.0] * 10, draws=25))
    assert sampler.examples_per_epoch == 25
    assert sampler.updates_per_epoch == 7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"effective_batch": 0}, "effective_batch is 0"),
        ({"effective_batch": 4, "micro_batch": 0}, "micro_batch is 0"),
        ({"effective_batch": 4, "micro_batch": 8}, "micro_batch is 8"),
        ({"effective_batch": 4, "processes": 2, "rank": 2}, "rank is 2"),
        ({"effective_batch": 4, "processes": 0}, "0 processes"),
        ({"effective_batch": 4, "order": "shuffle"}, "shuffle"),
    ],
)
def test_invalid_settings_are_refused(options, message):
    with pytest.raises(InvalidConfig, match=message):
        WindowSampler(10, **options)


def test_a_start_beyond_the_epoch_is_refused():
    with pytest.raises(InvalidData, match="4 updates cannot be skipped: the epoch has 3"):
        WindowSampler(10, effective_batch=4).micro_batches(0, 4)
    with pytest.raises(InvalidData, match="11 cannot be skipped"):
        OrderSampler(10).set_epoch(0, 11)


def test_data_without_length_or_samples_is_refused():
    with pytest.raises(InvalidData, match="generator has no length"):
        OrderSampler(i for i in range(3))
    with pytest.raises(InvalidData, match="0 samples"):
        OrderSampler([])
