"""Grouping micro-batches, lazily, and adding them up."""

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


def test_windows_follow_the_flags_and_draw_lazily():
    drawn = []

    def stream():
        for n, closes in enumerate([False, True, True, False, False, True]):
            drawn.append(n)
            yield micro(n, closes)

    groups = windows(stream(), DataWait())
    first = next(groups)
    assert drawn == [0]
    assert [len(m.data) for m in first] == [0, 1]
    assert drawn == [0, 1]
    assert [[len(m.data) for m in window] for window in groups] == [[2], [3, 4, 5]]


def test_a_stream_that_ends_within_a_window_ends_the_window():
    assert [len(list(window)) for window in windows(iter([micro(1, False), micro(1, False)]), DataWait())] == [2]


def test_waiting_is_counted_once():
    waiting = DataWait()
    for window in windows(iter([micro(1, False), micro(1, True)]), waiting):
        list(window)
    assert waiting.reset() > 0
    assert waiting.reset() == 0


def test_one_term_adds_up():
    window = Window()
    assert float(window.add(micro(2, False), [term(6.0, 2)])) == 6.0
    window.add(micro(3, True), [term(9.0, 3)])
    assert window.divisor == 5
    assert float(window.loss()) == 3.0
    assert window.examples == 5


def test_a_weight_reaches_gradient_and_loss():
    window = Window()
    assert float(window.add(micro(2, True), [term(6.0, 2, weight=0.5)])) == 3.0
    assert float(window.loss()) == 1.5


def test_several_terms_enter_one_backward_in_the_first_ones_unit():
    window = Window()
    root = window.add(micro(2, True), [term(6.0, 2), term(8.0, 4, weight=0.1)])
    assert float(root / window.divisor) == pytest.approx(6 / 2 + 0.1 * 8 / 4)
    assert float(window.loss()) == pytest.approx(3.2)


def test_equal_proportions_pass_and_others_do_not():
    window = Window()
    for _ in range(2):
        window.add(micro(2, False), [term(6.0, 2), term(8.0, 4)])
    window.check_ratios()
    window.add(micro(2, True), [term(6.0, 2), term(8.0, 3)])
    with pytest.raises(
        InvalidModel, match="Term 1 of the objective counts 4 in the window's first micro-batch and 11 in the whole"
    ):
        window.check_ratios()


def test_fractions_in_equal_proportions_pass_though_they_are_rounded():
    make = torch.Generator().manual_seed(0)
    window = Window()
    for _ in range(4):
        shares = torch.rand(50, generator=make)
        window.add(micro(50, False), [term(6.0, shares.sum()), term(8.0, (shares * 0.1).sum())])
    assert abs(window._counts[1] * window._first[0] / window._first[1] / window._counts[0] - 1) > 1e-12
    window.check_ratios()
    window.add(micro(2, True), [term(6.0, 0.5), term(8.0, 0.0501)])
    with pytest.raises(InvalidModel, match="Term 1 of the objective counts"):
        window.check_ratios()


def test_whole_counts_are_exact():
    window = Window()
    window.add(micro(2, False), [term(6.0, 10**8), term(8.0, 10**8)])
    window.add(micro(2, True), [term(6.0, 10**8), term(8.0, 10**8 + 1)])
    with pytest.raises(InvalidModel, match="Term 1 of the objective counts"):
        window.check_ratios()


def test_declared_counts_are_the_windows():
    window, batches = open_window(iter([micro(2, False), micro(3, True)]), lambda data: (len(data), 2 * len(data) + 1))
    roots = [window.add(batch, [term(1.0, 1), term(1.0, 1)]) for batch in batches]
    assert window.divisor == 1
    assert float(sum(roots)) == pytest.approx(2 / 5 + 2 / 12)
    window.check_ratios()


def test_a_term_that_counts_nothing_adds_nothing():
    window = Window()
    root = window.add(micro(2, True), [term(0.0, 0), term(8.0, 4, weight=0.5)])
    assert float(root / window.divisor) == 1.0
    assert window.loss() == 1.0
    window.check_ratios()


def test_a_window_that_counts_nothing_at_all_has_no_divisor():
    for terms in ([term(0.0, 0)], [term(0.0, 0), term(0.0, 0)]):
        window = Window()
        window.add(micro(2, True), terms)
        assert window.divisor == 0
        assert math.isnan(window.loss())


@pytest.fixture
def as_on_a_device(monkeypatch):
    """Numbers stay tensors, as they do where reading them would mean to wait."""
    monkeypatch.setattr(window_module, "_detach_number", lambda n: n.detach() if isinstance(n, torch.Tensor) else n)


@pytest.mark.usefixtures("as_on_a_device")
@pytest.mark.parametrize(("first", "second", "mean"), [(0, 0, math.nan), (0, 4, 1.0), (2, 0, 3.0)])
def test_counts_on_a_device_are_judged_like_those_of_the_host(first, second, mean):
    window = Window()
    terms = [term(3.0 * first, torch.tensor(first)), term(2.0 * second, torch.tensor(float(second)), weight=0.5)]
    window.add(micro(2, True), terms)
    assert float(window.divisor) == bool(first or second)
    assert float(window.loss()) == pytest.approx(mean, nan_ok=True)


def test_a_plain_sum_next_to_a_zero_count_counts():
    window = Window()
    window.add(micro(2, True), [term(3.0, None), term(0.0, 0)])
    assert (window.divisor, window.loss()) == (1.0, 3.0)


def test_halves_on_a_device_are_added_up_as_wider_numbers():
    window = Window()
    for last in (False, True):
        one = torch.ones((), dtype=torch.bfloat16, device="meta")
        window.add(micro(1, last), [Loss(sum=one, count=one)])
    assert window.divisor.dtype == window.loss().dtype == torch.float64  # in bfloat16 256 + 1 is 256


def test_too_few_declared_counts_are_named():
    window, batches = open_window(iter([micro(2, True)]), lambda data: (len(data),))
    with pytest.raises(InvalidModel, match="2 terms, but 1 were declared"):
        window.add(next(iter(batches)), [term(1.0, 1), term(1.0, 1)])


def test_batches_of_unknown_make_are_no_obstacle():
    window = Window()
    window.add(MicroBatch({"text": ["a", "b"], "scores": torch.zeros(3)}, False, None), [term(1.0, 3)])
    window.add(MicroBatch(object(), True, None), [term(1.0, 3)])
    assert window.examples == 3


def test_a_number_of_terms_that_changes_is_refused():
    window = Window()
    window.add(micro(2, False), [term(6.0, 2)])
    with pytest.raises(InvalidModel, match="2 terms, but 1 were"):
        window.add(micro(2, True), [term(6.0, 2), term(6.0, 2)])


def test_nothing_of_the_graph_is_kept():
    weight = torch.ones((), requires_grad=True)
    window = Window()
    window.add(micro(2, True), [Loss(sum=weight * 2, count=2)])
    assert (window.loss(), window._sums) == (1.0, [2.0])  # on the CPU read at once
    on_device = Window()
    on_device.add(micro(2, True), [Loss(sum=torch.ones((), device="meta", requires_grad=True) * 2, count=2)])
    assert on_device.loss().grad_fn is None
