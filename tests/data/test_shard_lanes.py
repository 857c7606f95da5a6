from itertools import islice

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from trueloop.core.errors import InvalidData
from trueloop.data.shard_lanes import CHUNK_SAMPLES, WorkerLanes, round_robin
from trueloop.data.shards import LanePosition, ShardEpoch, Shards


def epoch_of(data):
    return ShardEpoch(data=data, seed=1, epoch=2, shuffle=True, seed_samples=True)


def from_workers(of, starts, workers=1):
    worker_lanes = WorkerLanes(of, starts, workers=workers)
    return {lane: list(worker_lanes.read_lane(lane)) for lane in starts}


def in_process(of, starts):
    return {lane: list(of.samples(of.lanes[lane], start)) for lane, start in starts.items()}


def numbers(shard):
    return ((shard, i) for i in range(7 * shard))


def test_round_robin_skips_ended_lanes():
    lanes = [iter("ab"), iter(""), iter("xyz")]
    assert list(round_robin(lanes, 2)) == [(2, "x"), (0, "a"), (2, "y"), (0, "b"), (2, "z")]


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_yield_the_same_samples_as_this_process(workers):
    of = epoch_of(Shards(range(8), numbers, interleave=3, buffer=5))
    starts = {0: LanePosition(0, 0), 1: LanePosition(1, 2), 2: LanePosition(2, 3)}
    assert from_workers(of, starts, workers) == in_process(of, starts)
    some = {2: LanePosition(1, 0)}
    assert from_workers(of, some) == in_process(of, some)


@pytest.mark.parametrize("length", [0, 1, CHUNK_SAMPLES - 1, CHUNK_SAMPLES, CHUNK_SAMPLES + 1, 2 * CHUNK_SAMPLES])
def test_a_lane_ends_at_any_length(length):
    of = epoch_of(Shards([0], lambda _: range(length), buffer=0))
    assert [samples.data for samples in from_workers(of, {0: LanePosition(0, 0)})[0]] == list(range(length))


def test_reading_one_lane_stores_the_samples_of_others():
    of = epoch_of(Shards(range(4), lambda shard: ((shard, i) for i in range(50)), interleave=2))
    starts = {0: LanePosition(0, 0), 1: LanePosition(0, 0)}
    worker_lanes = WorkerLanes(of, starts, workers=1)
    second = list(worker_lanes.read_lane(1))
    assert {0: list(worker_lanes.read_lane(0)), 1: second} == in_process(of, starts)


DTYPES = (torch.float32, torch.bfloat16, torch.bool, torch.int64, torch.complex64)


def unusual_tensors(_shard):
    for i in range(3):
        yield {
            "nested": [torch.full((2, i), i).to(dtype) for dtype in DTYPES],
            "scalar": torch.tensor(i, dtype=torch.bfloat16),
            "turned": torch.arange(6).reshape(2, 3).T,
            "sparse": torch.eye(2).to_sparse(),
            "text": str(i),
            "array": torch.arange(3).numpy(),
        }


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")  # torch's own, for its own pickling
def test_all_kinds_of_tensors_are_sent_unchanged():
    of = epoch_of(Shards([0], unusual_tensors, buffer=0))
    starts = {0: LanePosition(0, 0)}
    sent, received = from_workers(of, starts)[0], in_process(of, starts)[0]
    for one, other in zip(sent, received, strict=True):
        assert one[1:] == other[1:]
        for a, b in zip(one.data["nested"], other.data["nested"], strict=True):
            assert a.dtype == b.dtype
            assert a.shape == b.shape
            assert torch.equal(a, b)
        assert one.data["scalar"] == other.data["scalar"]
        assert torch.equal(one.data["turned"], other.data["turned"])
        assert torch.equal(one.data["sparse"].to_dense(), other.data["sparse"].to_dense())
        assert one.data["text"] == other.data["text"]
        assert one.data["array"].tolist() == [0, 1, 2]
        one.data["scalar"].add_(1)  # writable, as in this process


class SplitsAmongWorkers(IterableDataset):
    """As torch's documentation recommends: each worker yields its share."""

    def __iter__(self):
        worker = get_worker_info()
        return iter(range(20)) if worker is None else iter(range(worker.id, 20, worker.num_workers))


def test_a_dataset_that_splits_itself_among_workers_is_read_completely():
    of = epoch_of(Shards([SplitsAmongWorkers(), SplitsAmongWorkers()], iter, buffer=0))
    starts = {0: LanePosition(0, 0), 1: LanePosition(0, 0)}
    assert {lane: [s.data for s in samples] for lane, samples in from_workers(of, starts, 2).items()} == {
        0: list(range(20)),
        1: list(range(20)),
    }


def test_a_trueloop_error_in_a_worker_is_raised_unchanged():
    of = epoch_of(Shards(["a"], lambda _: range(3), sizes=[4], buffer=0))
    with pytest.raises(InvalidData, match=r"\AShard 0 \('a'\) ended after 3 samples, but sizes says 4.\n"):
        from_workers(of, {0: LanePosition(0, 0)})


def broken(_shard):
    yield 0
    raise OSError("torn archive")


def test_any_other_error_in_a_worker_names_its_shard():
    of = epoch_of(Shards(["a"], broken, buffer=0))
    with pytest.raises(OSError, match=r"(?s)torn archive.*reading sample 1 of shard 0"):
        from_workers(of, {0: LanePosition(0, 0)})


def test_an_unfinished_epoch_ends_its_workers():
    of = epoch_of(Shards(range(4), lambda shard: range(10_000), interleave=2))
    worker_lanes = WorkerLanes(of, {0: LanePosition(0, 0), 1: LanePosition(0, 0)}, workers=2)
    assert len(list(islice(worker_lanes.read_lane(0), 40))) == 40
    processes = list(worker_lanes._messages._workers)
    assert all(process.is_alive() for process in processes)
    del worker_lanes
    for process in processes:
        process.join(timeout=30)
    assert not any(process.is_alive() for process in processes)
