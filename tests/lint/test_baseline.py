import json
from collections import Counter

import pytest

from trueloop.core.errors import InvalidConfig
from trueloop.core.findings import Finding, Severity, SourceLocation
from trueloop.lint.baseline import baseline_key, load_baseline, write_baseline


def finding(path, line=3):
    return Finding(
        code="GRD001", slug="s", title="t", severity=Severity.ERROR, message="m.", location=SourceLocation(path, line)
    )


def test_the_baseline_key_is_independent_of_line_numbers(tmp_path):
    inside = baseline_key(finding(str(tmp_path / "a.py")), "  optimizer.step()  ", tmp_path)
    assert inside == baseline_key(finding(str(tmp_path / "a.py"), line=40), "optimizer.step()", tmp_path)
    assert inside == ("a.py", "GRD001", "optimizer.step()")
    assert inside != baseline_key(finding(str(tmp_path / "a.py")), "optimizer.step(closure)", tmp_path)


def test_a_baseline_round_trips_with_counts(tmp_path):
    keys = [("b.py", "GRD001", "é"), ("a.py", "GRD001", "x"), ("a.py", "GRD001", "x")]
    path = tmp_path / "baseline.json"
    assert write_baseline(path, keys) == 3
    assert load_baseline(path) == Counter(keys)
    assert json.loads(path.read_text())["findings"][0] == ["a.py", "GRD001", "x"], "sorted, for reviews"
    assert write_baseline(path, []) == 0
    assert load_baseline(path) == Counter()


@pytest.mark.parametrize(
    "content", ["", "[]", '{"schema": 2, "findings": []}', '{"schema": 1}', '{"schema": 1, "findings": [1]}']
)
def test_an_invalid_baseline_is_rejected(tmp_path, content):
    path = tmp_path / "b.json"
    path.write_text(content)
    with pytest.raises(InvalidConfig, match="is not a baseline"):
        load_baseline(path)


def test_a_missing_baseline_error_says_how_to_write_one(tmp_path):
    with pytest.raises(InvalidConfig) as caught:
        load_baseline(tmp_path / "gone.json")
    assert "--write-baseline" in caught.value.fix
    with pytest.raises(InvalidConfig, match="cannot be written"):
        write_baseline(tmp_path / "no" / "folder.json", [])
