"""What `trueloop explain` prints of every failure, in a narrow terminal."""

from __future__ import annotations

import inspect
import re

import pytest

from trueloop.cli.app import main
from trueloop.failures.load import Entry, catalogue, error_page, known_errors


def printed(word: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    monkeypatch.setenv("COLUMNS", "50")
    assert main(["explain", word]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("entry", catalogue().values(), ids=lambda entry: entry.code)
def test_code_and_addresses_are_never_wrapped(entry: Entry, monkeypatch, capsys):
    lines = printed(entry.code, monkeypatch, capsys)
    for address in re.findall(r"https://[^\s,;)]+", entry.failure.doc):
        assert any(address in line for line in lines), address
    scripts = [
        line for script in (entry.failure.bad, entry.failure.good) for line in inspect.cleandoc(script).splitlines()
    ]
    code = re.findall(r"^ {8,}(\S.*)$", entry.failure.doc, flags=re.MULTILINE)
    for text in filter(str.strip, [*scripts, *code]):
        assert any(line.endswith(text.rstrip()) for line in lines), text


@pytest.mark.parametrize("kind", known_errors())
def test_addresses_on_error_pages_are_not_wrapped(kind: str, monkeypatch, capsys):
    lines = printed(kind, monkeypatch, capsys)
    for address in re.findall(r"https://[^\s,;)]+", error_page(kind)):
        assert any(address in line for line in lines), address


def test_prose_is_wrapped_to_the_terminal(monkeypatch, capsys):
    lines = printed("GRD001", monkeypatch, capsys)
    prose = lines[lines.index("Why it happens") : lines.index("Fix")]
    assert len(prose) > 3
    assert all(len(line) <= 50 for line in prose)
