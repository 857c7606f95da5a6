"""Valid targets are accepted, and invalid ones are rejected with a clear error."""

import pytest
from torch import nn

from trueloop.core.errors import InvalidConfig
from trueloop.verification.proof_target import ProofTarget


def test_a_subject_is_made_of_what_a_build_function_returns():
    model = nn.Linear(1, 1)
    ready = ProofTarget(model=model)
    assert ProofTarget.from_user(ready) is ready
    assert ProofTarget.from_user(model).model is model
    assert ProofTarget.from_user({"model": model, "causal": True}).causal
    assert ProofTarget.from_user(lambda: model).model() is model


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3, "int cannot be verified"),
        ({"loss": None}, "no model"),
        ({"model": nn.Linear(1, 1), "optimiser": None}, "Did you mean 'optimizer'"),
        ({"model": 3}, "model is int"),
        ({"model": nn.Linear(1, 1), "loader": iter([])}, "cannot be read more than once"),
        ({"model": nn.Linear(1, 1), "val": 3}, "val is int"),
        ({"model": nn.Linear(1, 1), "save": print}, "save and load go together"),
    ],
)
def test_what_does_not_fit_is_told(given, message):
    with pytest.raises(InvalidConfig, match=message):
        ProofTarget.from_user(given)
