from __future__ import annotations

from pathlib import Path

import pytest

from trueloop.app.training.profiling import profile_recipe
from trueloop.core.errors import InvalidConfig
from trueloop.recipes import registry


@pytest.mark.parametrize(
    ("trace", "updates", "message"),
    [
        (None, 0, "updates is 0"),
        (Path("trace.txt"), 1, "cannot be written to 'trace.txt'"),
        (Path("nowhere/trace.json"), 1, "cannot be written to 'nowhere/trace.json'"),
    ],
)
def test_invalid_arguments_are_refused_before_training(
    trace: Path | None, updates: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidConfig, match=message):
        profile_recipe(registry.load("digits"), updates=updates, trace=trace)
