"""A report with every kind of content, and the source file of its findings."""

from __future__ import annotations

import linecache
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from trueloop.core.findings import (
    UNPROVABLE_AT_RUN_TIME,
    ExplainedError,
    FailureVerdict,
    Finding,
    Report,
    Series,
    Severity,
    SourceLocation,
    SuggestedChange,
    UpdateTiming,
    Verdict,
)
from trueloop.core.learning import LearningSummary, LearningVerdict

SOURCE = '''\
"""Trains."""
import torch


def train(model, loader):
    optimizer = torch.optim.AdamW(model.parameters())
    history = []
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()  # consumed here
        history.append(loss)
    return history
'''


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "train.py").write_text(SOURCE)
    linecache.clearcache()
    yield tmp_path
    linecache.clearcache()


@pytest.fixture
def finding(folder: Path) -> Finding:
    path = str(folder / "train.py")
    return Finding(
        code="GRD001",
        slug="never-cleared",
        title="Gradients are never cleared",
        severity=Severity.ERROR,
        message="The step used gradients of 4 parameters that an earlier step had used; their norm is 23.9.",
        location=SourceLocation(path, 11, "train"),
        related=((SourceLocation(path, 10, "train"), "added here"),),
        first_update=1,
        count=1199,
        fix="Call optimizer.zero_grad() before each backward.",
        change=SuggestedChange(SourceLocation(path, 10, "train"), "optimizer.zero_grad()", "before"),
    )


@pytest.fixture
def report(finding: Finding) -> Report:
    path = finding.location.path if finding.location else ""
    graph_kept = replace(
        finding,
        code="MEM001",
        slug="graph-kept",
        title="Graphs are kept",
        severity=Severity.WARNING,
        count=1,
        location=SourceLocation(path, 12, "train"),
        related=(),
        change=None,
        first_update=40,
        fix="Keep loss.item().",
    )
    starved = replace(graph_kept, code="ENV001", slug="starved", severity=Severity.NOTE, location=None, fix="")
    updates = tuple(range(0, 1200, 10))
    return Report(
        findings=(finding, graph_kept, starved),
        verdicts=(
            FailureVerdict("GRD001", Verdict.FIRED, "seen 312 more times, at other lines"),
            FailureVerdict("MEM001", Verdict.FIRED),
            FailureVerdict("ENV001", Verdict.FIRED),
            FailureVerdict("GRD002", Verdict.PASSED),
            FailureVerdict("PRC001", Verdict.NOT_APPLICABLE, "the program has no such operation"),
            FailureVerdict("DAT001", Verdict.NOT_JUDGED, "no held-out loader was swept"),
            FailureVerdict("DAT002", Verdict.NOT_JUDGED, "no held-out loader was swept"),
            FailureVerdict("CKP003", Verdict.NOT_JUDGED, UNPROVABLE_AT_RUN_TIME),
        ),
        suppressed=2,
        updates=1200,
        updates_traced=52,
        seconds=4.0,
        overhead_s=0.05,
        learning=LearningSummary(LearningVerdict.SLOWLY, "mse", math.nan, 0.81, 0.9, 1200),
        timing=UpdateTiming(
            update_s=0.0034, data_share=0.125, forward_share=0.25, backward_share=0.375, optimizer_share=0.125
        ),
        series={
            "loss": Series(updates=updates, values=(float("nan"), *(2.0 - 0.001 * update for update in updates[1:]))),
            "grad_norm": Series(updates=updates, values=tuple(0.5 + 0.1 * update for update in updates)),
            "lr": Series(updates=updates, values=(0.001,) * len(updates)),
            "live_graphs": Series(updates=(40,), values=(38.0,)),
        },
        problems=("loader batches are no longer traced: KeyError: 'x' (loaders.py:41)",),
    )


@pytest.fixture
def error(folder: Path) -> ExplainedError:
    path = str(folder / "train.py")
    return ExplainedError(
        kind="shape-mismatch",
        type="RuntimeError",
        title="Shapes that do not fit together",
        message="mat1 and mat2 shapes cannot be multiplied (16x392 and 288x10)",
        location=SourceLocation(path, 9, "train"),
        meaning="`head` (Linear of Net) expects in_features=288, and `x` has the shape (16, 392).",
        fix="Build the layer with in_features=392.",
        origin=SourceLocation(path, 8, "train"),
        origin_message="`x` comes from here",
        other_locations=((SourceLocation(path, 6, "train"), "made here"),),
        update=3,
    )
