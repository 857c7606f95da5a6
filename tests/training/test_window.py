"""Grouping micro-batches lazily, and accumulating their sums and counts."""

from __future__ import annotations

import math

import pytest
import torch

from trueloop.core.errors import InvalidModel
from trueloop.core.protocols import MicroBatch
from trueloop.training import window as window_module
from trueloop.training.objective import Loss
from trueloop.training.window import DataWait, Window, open_window, windows


def micro(n: int, closes: bool) -> MicroBatch:
    return MicroBatch(torch.zeros(n), closes, None)


def term(total: float, count: float | None, **kwargs) -> Loss:
    return Loss(sum=torch.tensor(total, dtype=torch.float64), count=count, **kwargs)


def test_windows_follow_closes_window_and_are_read_lazily():
    draws = []

    def stream():
        for n, closes in enumerate([False, True, True, False, False, True]):
            draws.append(n)
            yield micro(n, closes)

    groups = windows(stream(), DataWait())
    first = next(groups)
    assert draws == [0]
    assert [len(m.data) for m in first] == [0, 1]
    assert draws == [0, 1]
    assert [[len(m.data) for m in window] for window in groups] == [[2], [3, 4, 5]]


def test_a_stream_that_ends_within_a_window_ends_the_window():
    assert [len(list(window)) for window in windows(iter([micro(1, False), micro(1, False)]), DataWait())] == [2]


def test_waiting_time_is_counted_once():
    waiting = DataWait()
    for window in windows(iter([micro(1, False), micro(1, True)]), waiting):
        list(window)
    assert waiting.reset() > 0
    assert waiting.reset() == 0


def test_sums_and_counts_of_one_term():
    window = Window()
    assert float(window.add(micro(2, False), [term(6.0, 2)])) == 6.0
    window.add(micro(3, True), [term(9.0, 3)])
    assert window.divisor == 5
    assert float(window.loss()) == 3.0
    assert window.examples == 5


def test_a_weight_applies_to_gradient_and_loss():
    window = Window()
    assert float(window.add(micro(2, True), [term(6.0, 2, weight=0.5)])) == 3.0
    assert float(window.loss()) == 1.5


def test_several_terms_are_divided_by_their_first_counts():
    window = Window()
    root = window.add(micro(2, True), [term(6.0, 2), term(8.0, 4, weight=0.1)])
    assert float(root / window.divisor) == pytest.approx(6 / 2 + 0.1 * 8 / 4)
    assert float(window.loss()) == pytest.approx(3.2)


def test_only_counts_in_equal_proportions_are_accepted():
    window = Window()
    for _ in range(2):
        window.add(micro(2, False), [term(6.0, 2), term(8.0, 4)])
    window.check_ratios()
    window.add(micro(2, True), [term(6.0, 2), term(8.0, 3)])
    with pytest.raises(
        InvalidModel, match="Term 1 of the objective counts 4 in the first micro-batch of the window and 11 in all"
    ):
        window.check_ratios()


def test_rounded_fractions_in_equal_proportions_are_accepted():
    make = torch.Generator().manual_seed(0)
    window = Window()
    for _ in range(4):
        shares = torch.rand(50, generator=make)
        window.add(micro(50, False), [term(6.0, shares.sum()), term(8.0, (shares * 0.1).sum())])
    assert abs(window._counts[1] * window._first_counts[0] / window._first_counts[1] / window._counts[0] - 1) > 1e-12
    window.check_ratios()
    window.add(micro(2, True), [term(6.0, 0.5), term(8.0, 0.0501)])
    with pytest.raises(InvalidModel, match="Term 1 of the objective counts"):
        window.check_ratios()


def test_integer_counts_are_compared_exactly():
    window = Window()
    window.add(micro(2, False), [term(6.0, 10**8), term(8.0, 10**8)])
    window.add(micro(2, True), [term(6.0, 10**8), term(8.0, 10**8 + 1)])
    with pytest.raises(InvalidModel, match="Term 1 of the objective counts"):
        window.check_ratios()


def test_declared_counts_are_those_of_the_window():
    window, batches = open_window(iter([micro(2, False), micro(3, True)]), lambda data: (len(data), 2 * len(data) + 1))
    roots = [window.add(batch, [term(1.0, 1), term(1.0, 1)]) for batch in batches]
    assert window.divisor == 1
    assert float(sum(roots)) == pytest.approx(2 / 5 + 2 / 12)
    window.check_ratios()


def test_a_term_with_count_zero_adds_nothing():
    window = Window()
    root = window.add(micro(2, True), [term(0.0, 0), term(8.0, 4, weight=0.5)])
    assert float(root / window.divisor) == 1.0
    assert window.loss() == 1.0
    window.check_ratios()


def test_a_window_with_all_counts_zero_has_divisor_zero():
    for terms in ([term(0.0, 0)], [term(0.0, 0), term(0.0, 0)]):
        window = Window()
        window.add(micro(2, True), terms)
        assert window.divisor == 0
        assert math.isnan(window.loss())


@pytest.fixture
def tensors_as_on_a_gpu(monkeypatch):
    """Keep numbers as tensors, as on a GPU, where reading them would wait."""
    monkeypatch.setattr(window_module, "_detach_number", lambda n: n.detach() if isinstance(n, torch.Tensor) else n)


@pytest.mark.usefixtures("tensors_as_on_a_gpu")
@pytest.mark.parametrize(("first", "second", "mean"), [(0, 0, math.nan), (0, 4, 1.0), (2, 0, 3.0)])
def test_counts_on_a_gpu_are_treated_like_those_on_the_cpu(first, second, mean):
    window = Window()
    terms = [term(3.0 * first, torch.tensor(first)), term(2.0 * second, torch.tensor(float(second)), weight=0.5)]
    window.add(micro(2, True), terms)
    assert float(window.divisor) == bool(first or second)
    assert float(window.loss()) == pytest.approx(mean, nan_ok=True)


def test_a_plain_sum_with_a_term_of_count_zero():
    window = Window()
    window.add(micro(2, True), [term(3.0, None), term(0.0, 0)])
    assert (window.divisor, window.loss()) == (1.0, 3.0)


def test_half_precision_tensors_are_summed_in_float64():
    window = Window()
    for last in (False, True):
        one = torch.ones((), dtype=torch.bfloat16, device="meta")
        window.add(micro(1, last), [Loss(sum=one, count=one)])
    assert window.divisor.dtype == window.loss().dtype == torch.float64  # in bfloat16 256 + 1 is 256


def test_too_few_declared_counts_are_refused():
    window, batches = open_window(iter([micro(2, True)]), lambda data: (len(data),))
    with pytest.raises(InvalidModel, match="2 terms, but 1 were declared"):
        window.add(next(iter(batches)), [term(1.0, 1), term(1.0, 1)])


def test_batches_of_unknown_types_are_accepted():
    window = Window()
    window.add(MicroBatch({"text": ["a", "b"], "scores": torch.zeros(3)}, False, None), [term(1.0, 3)])
    window.add(MicroBatch(object(), True, None), [term(1.0, 3)])
    assert window.examples == 3


def test_a_number_of_terms_that_changes_is_refused():
    window = Window()
    window.add(micro(2, False), [term(6.0, 2)])
    with pytest.raises(InvalidModel, match="2 terms, but 1 were"):
        window.add(micro(2, True), [term(6.0, 2), term(6.0, 2)])


def test_the_graph_is_not_kept_alive():
    weight = torch.ones((), requires_grad=True)
    window = Window()
    window.add(micro(2, True), [Loss(sum=weight * 2, count=2)])
    assert (window.loss(), window._sums) == (1.0, [2.0])  # on the CPU they are read immediately
    on_device = Window()
    on_device.add(micro(2, True), [Loss(sum=torch.ones((), device="meta", requires_grad=True) * 2, count=2)])
    assert on_device.loss().grad_fn is None
