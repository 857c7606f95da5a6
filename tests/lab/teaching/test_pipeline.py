"""What is shown of a pipeline, against torch's own loaders run beside it and against what must hold for any of them."""

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


def numbers(found: PipelineRun, epoch: int = 0) -> list[list[list[int]]]:
    """Give the numbers in each batch of each rank."""
    return [[list(batch.indices) for batch in draw.batches] for draw in found.epochs[epoch]]


@pytest.mark.parametrize("sampler", ["none", "random", "weighted"])
def test_two_orders_that_are_the_same_by_chance_are_nobodys_fault(sampler: Any):
    shuffle = sampler == "none"
    seeds = [Pipeline(examples=2, sampler=sampler, shuffle=shuffle, seed=seed) for seed in range(12)]
    same = [made for made in map(run_pipeline, seeds) if made.epochs[0][0].order == made.epochs[1][0].order]
    assert same
    assert not any("set_epoch" in fact for made in same for fact in made.facts)


def test_whatever_is_asked_the_parts_add_up():
    for settings in ALL:
        asked = Pipeline(**settings)
        found = run_pipeline(asked)
        counts = Counter(example.label for example in found.examples)
        assert [counts[label] for label in range(3)] == list(asked.class_counts)
        for draw in (draw for epoch in found.epochs for draw in epoch):
            batched = [number for batch in draw.batches for number in batch.indices]
            assert Counter(batched) + Counter(draw.left_out) == Counter(draw.order)
            if not asked.buckets:
                assert tuple(batched) == draw.order[: len(batched)]
            assert len(draw.left_out) < (asked.batch if asked.drop_last else 1)
            for batch in draw.batches:
                labels = [found.examples[number].label for number in batch.indices]
                assert batch.composition == tuple(labels.count(label) for label in range(3))
                assert batch.lengths == tuple(found.examples[n].length for n in batch.indices if asked.sequences)
        assert found.facts
        assert len(found.epochs) == 2


def test_without_a_sampler_it_is_what_torch_draws():
    labels = run_pipeline(Pipeline()).examples
    loader = DataLoader(range(40), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(0))
    two = [[batch.tolist() for batch in loader] for _ in range(2)]
    found = run_pipeline(Pipeline())
    assert [numbers(found, epoch)[0] for epoch in range(2)] == two
    assert len(labels) == 40
    assert numbers(run_pipeline(Pipeline(shuffle=False)))[0] == [list(range(i, i + 8)) for i in range(0, 40, 8)]


def test_each_rank_draws_what_distributed_sampler_gives_and_repeats_are_marked():
    found = run_pipeline(Pipeline(sampler="distributed", ranks=3, seed=5))
    for epoch, rank in itertools.product(range(2), range(3)):
        sampler = DistributedSampler(range(40), num_replicas=3, rank=rank, seed=5)
        sampler.set_epoch(epoch)
        assert list(found.epochs[epoch][rank].order) == list(sampler)
    draws = found.epochs[0]
    repeated = [draw.order[place] for draw in draws for place in draw.repeated]
    given = Counter(number for draw in draws for number in draw.order)
    assert sorted(repeated) == sorted(number for number, count in given.items() if count == 2)
    assert len(repeated) == 2
    assert any("DistributedSampler repeats #" in fact for fact in found.facts)


def test_trueloops_own_sampler_repeats_nothing():
    draws = run_pipeline(Pipeline(sampler="distributed", made_by="trueloop", ranks=3)).epochs[0]
    assert sorted(number for draw in draws for number in draw.order) == list(range(40))
    assert [len(draw.order) for draw in draws] == [14, 13, 13]
    assert not any(draw.repeated for draw in draws)


@pytest.mark.parametrize("settings", [{"sampler": "distributed"}, {"sampler": "random", "made_by": "trueloop"}])
def test_an_epoch_that_was_not_told_repeats_the_order_and_is_named(settings: dict[str, Any]):
    settings = settings | {"shuffle": settings["sampler"] == "distributed"}
    told, untold = run_pipeline(Pipeline(**settings)), run_pipeline(Pipeline(**settings, set_epoch=False))
    assert numbers(told, 0) != numbers(told, 1)
    assert numbers(untold, 0) == numbers(untold, 1)
    assert any("set_epoch" in fact for fact in untold.facts)
    assert not any("set_epoch" in fact for fact in told.facts)


def test_weights_bring_the_rare_class_up():
    plain = run_pipeline(Pipeline(examples=200, balance="rare", sampler="random", shuffle=False))
    weighted = run_pipeline(Pipeline(examples=200, balance="rare", sampler="weighted", shuffle=False))

    def rare(found: PipelineRun) -> int:
        return sum(batch.composition[2] for batch in found.epochs[0][0].batches)

    assert (rare(plain), plain.examples[0].weight) == (10, None)
    assert rare(weighted) > 40
    assert sum(example.weight or 0 for example in weighted.examples) == pytest.approx(1)
    assert any("with replacement" in fact for fact in weighted.facts)


def test_padding_is_what_the_mask_leaves_and_buckets_make_it_less():
    padded = run_pipeline(Pipeline(sequences=True, examples=100))
    for batch in padded.epochs[0][0].batches:
        longest = max(batch.lengths)
        assert batch.shape == (len(batch.indices), longest)
        assert [len(row) for row in batch.tokens] == [longest] * len(batch.tokens)
        real = [row[length:] for row, length in zip(batch.tokens, batch.lengths, strict=True)]
        assert not any(itertools.chain.from_iterable(real))
        assert batch.padding == pytest.approx(1 - sum(batch.lengths) / (len(batch.lengths) * longest))

    def share(found: PipelineRun) -> float:
        batches = found.epochs[0][0].batches
        return sum(batch.padding * len(batch.tokens) * batch.shape[1] for batch in batches)

    assert share(run_pipeline(Pipeline(sequences=True, buckets=True, examples=100))) < 0.7 * share(padded)


def test_workers_take_turns_and_change_nothing_of_what_is_drawn():
    alone, two = run_pipeline(Pipeline(shuffle=False)), run_pipeline(Pipeline(shuffle=False, workers=2))
    assert numbers(alone) == numbers(two)
    assert [batch.worker for batch in two.epochs[0][0].batches] == [0, 1, 0, 1, 0]
    assert {batch.worker for batch in alone.epochs[0][0].batches} == {-1}


def test_what_torch_warns_of_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0}, raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    told = [fact for fact in run_pipeline(Pipeline(workers=2, examples=8)).facts if fact.startswith("torch warns")]
    assert len(told) == 1
    assert "will create 2 worker processes in total" in told[0]
    assert "Please be aware" not in told[0]


def test_sorted_and_not_shuffled_is_named():
    found = run_pipeline(Pipeline(by_class=True, shuffle=False))
    assert any("sorted by class" in fact for fact in found.facts)
    assert found.epochs[0][0].batches[0].composition == (8, 0, 0)
    assert not any("sorted by class" in fact for fact in run_pipeline(Pipeline(by_class=True)).facts)


def test_what_torch_refuses_is_told_in_its_own_words():
    with pytest.raises(InvalidConfig) as refused:
        run_pipeline(Pipeline(sampler="random", shuffle=True))
    assert "mutually exclusive with shuffle" in refused.value.why


def test_the_text_runs_as_a_file_and_prints_the_batches_shown(tmp_path: Path):
    asked = Pipeline(sampler="distributed", sequences=True, buckets=True, workers=1, examples=20)
    script = tmp_path / "as_shown.py"
    script.write_text(pipeline(asked).text)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert tuple(done.stdout.splitlines()) == run_pipeline(asked).printed
    assert len(done.stdout.splitlines()) == 6
