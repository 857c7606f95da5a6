"""The records of a pipeline agree with torch's own loaders, and have the properties of every pipeline."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

from trueloop.core.errors import InvalidConfig
from trueloop.lab.teaching.pipeline import PipelineRun, run_pipeline
from trueloop.lab.teaching.programs.pipeline import Pipeline, pipeline

ALL = [
    {"sampler": sampler, "made_by": made_by, "drop_last": drop_last, "examples": examples}
    | {"sequences": lengths != "", "buckets": lengths == "buckets"}
    | {"shuffle": sampler in ("none", "distributed")}
    for sampler, made_by, drop_last, examples, lengths in itertools.product(
        ("none", "sequential", "random", "weighted", "distributed"),
        ("torch", "trueloop"),
        (False, True),
        (1, 5, 43),
        ("", "padded", "buckets"),
    )
    if (sampler, made_by) != ("none", "trueloop")
]


def batch_indices(result: PipelineRun, epoch: int = 0) -> list[list[list[int]]]:
    """Return the indices in each batch of each rank."""
    return [[list(batch.indices) for batch in draw.batches] for draw in result.epochs[epoch]]


@pytest.mark.parametrize("sampler", ["none", "random", "weighted"])
def test_equal_orders_by_chance_are_not_reported(sampler: Any):
    shuffle = sampler == "none"
    seeds = [Pipeline(examples=2, sampler=sampler, shuffle=shuffle, seed=seed) for seed in range(12)]
    same = [run for run in map(run_pipeline, seeds) if run.epochs[0][0].order == run.epochs[1][0].order]
    assert same
    assert not any("set_epoch" in fact for run in same for fact in run.facts)


def test_batches_and_left_out_examples_add_up():
    for fields in ALL:
        settings = Pipeline(**fields)
        result = run_pipeline(settings)
        counts = Counter(example.label for example in result.examples)
        assert [counts[label] for label in range(3)] == list(settings.class_counts)
        for draw in (draw for epoch in result.epochs for draw in epoch):
            batched = [number for batch in draw.batches for number in batch.indices]
            assert Counter(batched) + Counter(draw.left_out) == Counter(draw.order)
            if not settings.buckets:
                assert tuple(batched) == draw.order[: len(batched)]
            assert len(draw.left_out) < (settings.batch if settings.drop_last else 1)
            for batch in draw.batches:
                labels = [result.examples[number].label for number in batch.indices]
                assert batch.composition == tuple(labels.count(label) for label in range(3))
                assert batch.lengths == tuple(result.examples[n].length for n in batch.indices if settings.sequences)
        assert result.facts
        assert len(result.epochs) == 2


def test_without_a_sampler_the_batches_are_those_of_torch():
    labels = run_pipeline(Pipeline()).examples
    loader = DataLoader(range(40), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(0))
    expected = [[batch.tolist() for batch in loader] for _ in range(2)]
    result = run_pipeline(Pipeline())
    assert [batch_indices(result, epoch)[0] for epoch in range(2)] == expected
    assert len(labels) == 40
    assert batch_indices(run_pipeline(Pipeline(shuffle=False)))[0] == [list(range(i, i + 8)) for i in range(0, 40, 8)]


def test_each_rank_draws_the_order_of_distributed_sampler():
    result = run_pipeline(Pipeline(sampler="distributed", ranks=3, seed=5))
    for epoch, rank in itertools.product(range(2), range(3)):
        sampler = DistributedSampler(range(40), num_replicas=3, rank=rank, seed=5)
        sampler.set_epoch(epoch)
        assert list(result.epochs[epoch][rank].order) == list(sampler)
    draws = result.epochs[0]
    repeated = [draw.order[place] for draw in draws for place in draw.repeated]
    draw_counts = Counter(number for draw in draws for number in draw.order)
    assert sorted(repeated) == sorted(number for number, count in draw_counts.items() if count == 2)
    assert len(repeated) == 2
    assert any("DistributedSampler repeats #" in fact for fact in result.facts)


def test_the_sampler_of_trueloop_repeats_nothing():
    draws = run_pipeline(Pipeline(sampler="distributed", made_by="trueloop", ranks=3)).epochs[0]
    assert sorted(number for draw in draws for number in draw.order) == list(range(40))
    assert [len(draw.order) for draw in draws] == [14, 13, 13]
    assert not any(draw.repeated for draw in draws)


@pytest.mark.parametrize("settings", [{"sampler": "distributed"}, {"sampler": "random", "made_by": "trueloop"}])
def test_a_missing_set_epoch_is_reported(settings: dict[str, Any]):
    settings = settings | {"shuffle": settings["sampler"] == "distributed"}
    with_set_epoch = run_pipeline(Pipeline(**settings))
    without_set_epoch = run_pipeline(Pipeline(**settings, set_epoch=False))
    assert batch_indices(with_set_epoch, 0) != batch_indices(with_set_epoch, 1)
    assert batch_indices(without_set_epoch, 0) == batch_indices(without_set_epoch, 1)
    assert any("set_epoch" in fact for fact in without_set_epoch.facts)
    assert not any("set_epoch" in fact for fact in with_set_epoch.facts)


def test_weighted_sampling_draws_the_rare_class_more_often():
    plain = run_pipeline(Pipeline(examples=200, balance="rare", sampler="random", shuffle=False))
    weighted = run_pipeline(Pipeline(examples=200, balance="rare", sampler="weighted", shuffle=False))

    def rare(result: PipelineRun) -> int:
        return sum(batch.composition[2] for batch in result.epochs[0][0].batches)

    assert (rare(plain), plain.examples[0].weight) == (10, None)
    assert rare(weighted) > 40
    assert sum(example.weight or 0 for example in weighted.examples) == pytest.approx(1)
    assert any("with replacement" in fact for fact in weighted.facts)


def test_padding_is_measured_and_buckets_reduce_it():
    padded = run_pipeline(Pipeline(sequences=True, examples=100))
    for batch in padded.epochs[0][0].batches:
        longest = max(batch.lengths)
        assert batch.shape == (len(batch.indices), longest)
        assert [len(row) for row in batch.tokens] == [longest] * len(batch.tokens)
        real = [row[length:] for row, length in zip(batch.tokens, batch.lengths, strict=True)]
        assert not any(itertools.chain.from_iterable(real))
        assert batch.padding == pytest.approx(1 - sum(batch.lengths) / (len(batch.lengths) * longest))

    def share(result: PipelineRun) -> float:
        batches = result.epochs[0][0].batches
        return sum(batch.padding * len(batch.tokens) * batch.shape[1] for batch in batches)

    assert share(run_pipeline(Pipeline(sequences=True, buckets=True, examples=100))) < 0.7 * share(padded)


def test_workers_take_turns_and_do_not_change_the_batches():
    main_process, two_workers = run_pipeline(Pipeline(shuffle=False)), run_pipeline(Pipeline(shuffle=False, workers=2))
    assert batch_indices(main_process) == batch_indices(two_workers)
    assert [batch.worker for batch in two_workers.epochs[0][0].batches] == [0, 1, 0, 1, 0]
    assert {batch.worker for batch in main_process.epochs[0][0].batches} == {-1}


def test_warnings_of_torch_are_reported(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0}, raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    facts = run_pipeline(Pipeline(workers=2, examples=8)).facts
    (warning,) = [fact for fact in facts if fact.startswith("torch warns")]
    assert "will create 2 worker processes in total" in warning
    assert "Please be aware" not in warning


def test_a_sorted_dataset_without_shuffling_is_reported():
    result = run_pipeline(Pipeline(by_class=True, shuffle=False))
    assert any("sorted by class" in fact for fact in result.facts)
    assert result.epochs[0][0].batches[0].composition == (8, 0, 0)
    assert not any("sorted by class" in fact for fact in run_pipeline(Pipeline(by_class=True)).facts)


def test_an_error_of_torch_is_quoted():
    with pytest.raises(InvalidConfig) as refused:
        run_pipeline(Pipeline(sampler="random", shuffle=True))
    assert "mutually exclusive with shuffle" in refused.value.why


def test_the_program_runs_as_a_file_and_prints_the_same_batches(tmp_path: Path):
    settings = Pipeline(sampler="distributed", sequences=True, buckets=True, workers=1, examples=20)
    script = tmp_path / "as_shown.py"
    script.write_text(pipeline(settings).text)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert tuple(done.stdout.splitlines()) == run_pipeline(settings).printed
    assert len(done.stdout.splitlines()) == 6
