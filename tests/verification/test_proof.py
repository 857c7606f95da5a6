"""A proof is run safely: errors of the user's code are reported with their location."""

import pytest
import torch
from torch import nn

from trueloop.core.errors import InvalidData
from trueloop.verification.discover import find_proof
from trueloop.verification.proof import run_proof
from trueloop.verification.proof_context import ProofContext
from trueloop.verification.proof_target import ProofTarget


def test_an_error_of_the_subject_is_evidence(prove, classes):
    class Failing(nn.Linear):
        def forward(self, x):
            raise ZeroDivisionError("of the user")

    evidence = prove("input-used", model=Failing(8, 3), batch=classes[0])
    assert evidence.verdict == "not judged"
    assert "ZeroDivisionError: of the user" in evidence.message
    assert "test_proof.py:" in evidence.message
    assert not evidence.ok


def test_what_was_compiled_runs_as_written_unless_the_time_is_measured(prove, classes):
    runs: list[bool] = []

    class Seen(nn.Linear):
        def forward(self, x):
            runs.append(torch.compiler.is_compiling())
            return super().forward(x)

    model = torch.compile(Seen(8, 3), backend="eager")
    model(classes[0])
    assert runs[0]
    runs.clear()
    several = {"model": model, "loss": nn.CrossEntropyLoss(), "batch": classes}
    assert prove("samples-independent", **several).verdict == "holds"  # runs backward through one graph again and again
    assert runs
    assert not any(runs)


def test_a_subject_that_does_not_fit_is_an_error(prove, net, classes):
    with pytest.raises(InvalidData):
        prove("loss-falls", model=net(), loss=nn.CrossEntropyLoss(), batch=classes[0])


def test_time_is_measured_by_the_benchs_clock(net, classes):
    ticks = iter(range(100))
    evidence = run_proof(
        find_proof("input-used"), ProofContext(ProofTarget(model=net(), batch=classes[0]), clock=lambda: next(ticks))
    )
    assert evidence.seconds == 1
    assert evidence.proof == "input-used"
    assert evidence.title == "The input is used"


def test_a_proof_works_where_gradients_are_off(net, classes):
    subject = ProofTarget(model=net(), loss=nn.CrossEntropyLoss(), batch=classes)
    with torch.no_grad():
        assert run_proof(find_proof("every-parameter-moves"), ProofContext(subject))
