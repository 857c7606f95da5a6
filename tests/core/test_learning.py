"""Whether the loss of held-out samples rises, or never fell; pure arithmetic."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueloop.core.learning import HeldOutCourse, HeldOutLoss, LearningSummary, LearningVerdict

UPDATES = list(range(0, 1000, 10))
FALLING = [math.exp(-update / 300) for update in UPDATES]


def course(values, *, right=None, majority=0.5, constant=1.0):
    return HeldOutCourse([50 * each for each in range(len(values))], values, right, majority, constant)


def test_a_rise_is_named_with_the_evaluation_from_which_it_rose():
    found = course([0.9, 0.7, 0.6, 0.65, 0.8, 0.9, 1.0, 1.1]).rise(UPDATES, FALLING)
    assert found == HeldOutLoss(0.6, 100, pytest.approx(1.05))


@pytest.mark.parametrize(
    "values",
    [
        [0.9, 0.7, 0.6, 0.55, 0.54, 0.53, 0.53, 0.53],
        [0.9, 0.7, 0.6, 0.62, 0.63, 0.64, 0.64, 0.64],  # by less than a fifth
        [0.9, 0.7, 0.6, 0.9, 1.1, 0.8, 0.6, 0.6],  # and falls again
        [1.5, 0.7, 0.6, 0.9],  # too few
        [0.6, 0.9, 0.5, 1.0, 0.6, 0.9, 0.5, 0.8],  # noise
        [0.010, 0.009, 0.010, 0.011, 0.012, 0.014, 0.016],  # far below the constant answer
    ],
)
def test_what_is_no_rise(values):
    assert course(values).rise(UPDATES, FALLING) is None


def test_a_rise_counts_only_while_the_training_loss_falls():
    rising = course([0.9, 0.7, 0.6, 0.65, 0.8, 0.9, 1.0, 1.1])
    assert rising.rise(UPDATES, [0.5] * len(UPDATES)) is None
    assert rising.rise(UPDATES, [*FALLING[:10], *[1 + update / 1000 for update in UPDATES[10:]]]) is None


@given(st.integers(0, 10_000), st.integers(5, 60))
def test_noise_around_one_value_never_rises_by_half(seed, length):
    noise = random.Random(seed)
    assert course([1 + noise.gauss(0, 0.03) for _ in range(length)]).rise(UPDATES, FALLING) is None


@pytest.mark.parametrize(
    ("values", "right", "end", "constant", "expected"),
    [
        ([1.1, 1.4, 1.6], None, 0.01, 1.0, True),
        ([1.6], None, 0.01, 1.0, True),
        ([1.1, 1.4, 1.6], 0.52, 0.01, 1.0, True),
        ([1.1, 1.4, 1.6], 0.80, 0.01, 1.0, False),  # right, but too sure of itself
        ([0.8, 1.4, 1.6], None, 0.01, 1.0, False),  # it was below once: overfitting
        ([1.1, 1.4, 1.6], None, 0.7, 1.0, False),
        ([1.1, 1.4, 1.6], None, 0.01, None, False),
        ([1.1, 1.4, 1.6], None, 0.01, 2.0, False),
    ],
)
def test_what_is_memorised(values, right, end, constant, expected):
    found = course(values, right=right, constant=constant and max(1.0, constant)).memorised(end, 1.0)
    assert (found is not None) is expected


def test_the_verdict_names_both_losses():
    losses = LearningSummary(
        LearningVerdict.OVERFITTING, "nll", 2.3, 0.04, 2.3, 500, held_out=HeldOutLoss(0.9, 1200, 1.7)
    )
    assert losses.losses == (
        "loss 2.30 → 0.0400, held-out loss 0.900 at update 1200 → 1.70; always answering the class shares costs 2.30"
    )
    assert losses._replace(verdict=LearningVerdict.MEMORISED).losses.startswith(
        "loss 2.30 → 0.0400, held-out loss 1.70;"
    )
    assert losses.is_learning
    assert not losses.is_failing
