"""The curves of a failure are measured once, cached, and computed over several requests if they take long."""

from __future__ import annotations

import os
from dataclasses import asdict, replace

import pytest

from trueloop.app.web.wire_format import encode_json
from trueloop.core.errors import InvalidConfig
from trueloop.failures.load import catalogue
from trueloop.lab.teaching import signatures
from trueloop.lab.teaching.signatures import write_pair
from trueloop.lab.views import signature
from trueloop.lab.views.signature import Query, answer


@pytest.fixture(autouse=True)
def short(monkeypatch, tmp_path):
    """A few epochs, and a cache of its own."""
    monkeypatch.setattr(signatures, "BASE", replace(signatures.BASE, epochs=3))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    signature._RECENT.clear()
    signature._record_healthy.cache_clear()


def test_a_signature_is_measured_once_and_then_cached(monkeypatch):
    monkeypatch.setattr(signature, "TIME_PER_ANSWER_S", 1000.0)
    reply = answer(Query(code="GRD001"))
    assert (reply["curves"]["found"], reply["curves"]["seeds"]) == (3, 3)
    assert reply["curves"]["finding"]["code"] == "GRD001"
    assert reply["curves"]["plots"][0]["name"] == "loss"
    line = reply["curves"]["finding"]["line"]
    assert "".join(piece for _, piece in reply["script"][line - 1]).strip() == "optimizer.step()"
    assert reply["changes"][0]["kind"] == "left out"
    assert reply["address"].startswith("#/simulator?dataset=moons&")
    assert reply["address"].endswith("&bugs=GRD001&twin=1")
    monkeypatch.setattr(signature, "_record_seed", lambda entry, scripts: pytest.fail("the scripts were run again"))
    assert encode_json(answer(Query(code="never-cleared"))) == encode_json(reply)


@pytest.mark.parametrize("cache", [True, False])
def test_a_computation_continues_over_several_requests(monkeypatch, tmp_path, cache):
    if not cache:
        (tmp_path / "trueloop").write_text("in the way")
    monkeypatch.setattr(signature, "TIME_PER_ANSWER_S", 0.0)
    for done in (1, 2):
        assert answer(Query(code="SCH002"))["done"] == done
        if cache:
            signature._RECENT.clear()  # as if another process answered the next request
        answer(Query(code="SCH001"))  # a request of another page in between
    reply = answer(Query(code="SCH002"))
    assert reply["curves"]["plots"][1]["name"] == "rate"


def test_the_cached_result_of_a_seed_equals_the_measured_one():
    entry = signature.find_failure("GRD001")
    assert entry
    cache = signature.DiskCache(signature.cache_folder({"XDG_CACHE_HOME": os.environ["XDG_CACHE_HOME"]}) / "signatures")
    scripts = signature.write_pair(entry.failure.inject)
    first = signature._run_and_store(entry, scripts, cache)
    signature._RECENT.clear()
    again = signature._load_seed(entry, scripts, cache)
    assert again is not None
    assert encode_json(asdict(again.broken)) == encode_json(asdict(first.broken))
    assert again.finding == first.finding


def test_every_failure_has_its_own_cache_key():
    injected = [entry for entry in catalogue().values() if entry.failure.inject]
    keys = {signature.cache_key(entry, write_pair(entry.failure.inject)) for entry in injected}
    assert len(keys) == len(injected)


def test_a_failure_that_cannot_be_injected_has_no_curves():
    assert answer(Query(code="CKP003")) == {"code": "CKP003", "curves": None}
    with pytest.raises(InvalidConfig, match="no failure"):
        answer(Query(code="nothing"))
