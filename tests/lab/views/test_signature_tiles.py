"""The tiles of the wall are measured a few at a time, cached on this machine, and then served without torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from trueloop.app.web.wire_format import encode_json
from trueloop.lab.views import signature_tiles, signatures
from trueloop.lab.views.signature_tiles import Query, answer


@pytest.fixture(autouse=True)
def short(monkeypatch, tmp_path):
    """A few epochs, and a cache of its own."""
    monkeypatch.setattr(signature_tiles, "EPOCHS", 3)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    signature_tiles._find_job.cache_clear()
    signature_tiles._record_healthy.cache_clear()
    yield
    signature_tiles._find_job.cache_clear()


def test_a_tile_is_measured_once_and_then_cached(monkeypatch):
    assert signatures.answer(signatures.Query(what="tiles")) == {"tiles": {}}
    reply = answer(Query(codes=("SCH006",)))
    tile = reply["tiles"]["SCH006"]
    assert tile["name"] == "rate", "the quantity that differs most"
    assert tile["healthy"]["middle"] != tile["broken"]["middle"]
    monkeypatch.setattr(signature_tiles, "_measure", lambda scripts: pytest.fail("the scripts were run again"))
    assert encode_json(answer(Query(codes=("SCH006",)))) == encode_json(reply)
    assert encode_json(signatures.answer(signatures.Query(what="tiles"))) == encode_json(reply)


def test_an_answer_has_the_tiles_that_the_time_allows(monkeypatch):
    monkeypatch.setattr(signature_tiles, "TIME_PER_ANSWER_S", 0.0)
    assert list(answer(Query(codes=("GRD001", "GRD002")))["tiles"]) == ["GRD001"]


def test_a_failure_that_changes_nothing_shows_the_loss():
    tile = answer(Query(codes=("CKP001",)))["tiles"]["CKP001"]
    assert (tile["name"], tile["words"].endswith("The same to the last digit.")) == ("loss", True)


def test_a_failure_without_curves_has_no_tile():
    assert answer(Query(codes=("CKP003", "nothing"))) == {"tiles": {"CKP003": None, "nothing": None}}


def test_cached_tiles_need_no_torch():
    code = (
        "import sys, trueloop.lab.views.signatures as v; v.answer(v.Query(what='tiles')); print('torch' in sys.modules)"
    )
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert completed.stdout == "False\n"
