"""One failure's curves, really run; kept, and asked for in turns where they take long."""

from __future__ import annotations

import os
from dataclasses import asdict, replace

import pytest

from trueloop.app.web.wire_format import encode_json
from trueloop.core.errors import InvalidConfig
from trueloop.failures.load import catalogue
from trueloop.lab.teaching import signatures
from trueloop.lab.teaching.signatures import pair
from trueloop.lab.views import signature
from trueloop.lab.views.signature import Query, answer


@pytest.fixture(autouse=True)
def short(monkeypatch, tmp_path):
    """A few epochs, and a cache of its own."""
    monkeypatch.setattr(signatures, "BASE", replace(signatures.BASE, epochs=3))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    signature._RECENT.clear()
    signature._healthy.cache_clear()


def test_a_signature_is_run_once_and_then_known(monkeypatch):
    monkeypatch.setattr(signature, "TIME_PER_ANSWER_S", 1000.0)
    told = answer(Query(code="GRD001"))
    assert (told["curves"]["found"], told["curves"]["seeds"]) == (3, 3)
    assert told["curves"]["finding"]["code"] == "GRD001"
    assert told["curves"]["plots"][0]["name"] == "loss"
    hit = told["curves"]["finding"]["line"]
    assert "".join(piece for _, piece in told["script"][hit - 1]).strip() == "optimizer.step()"
    assert told["changes"][0]["kind"] == "left out"
    assert told["address"].startswith("#/simulator?dataset=moons&")
    assert told["address"].endswith("&bugs=GRD001&twin=1")
    monkeypatch.setattr(signature, "_run", lambda entry, both: pytest.fail("it was run again"))
    assert encode_json(answer(Query(code="never-cleared"))) == encode_json(told)


@pytest.mark.parametrize("cache", [True, False])
def test_who_is_out_of_time_is_asked_again_and_goes_on(monkeypatch, tmp_path, cache):
    if not cache:
        (tmp_path / "trueloop").write_text("in the way")
    monkeypatch.setattr(signature, "TIME_PER_ANSWER_S", 0.0)
    for done in (1, 2):
        assert answer(Query(code="SCH002"))["done"] == done
        if cache:
            signature._RECENT.clear()  # another process is asked next
        answer(Query(code="SCH001"))  # and another page asks in between
    told = answer(Query(code="SCH002"))
    assert told["curves"]["plots"][1]["name"] == "rate"


def test_what_is_kept_of_a_seed_is_what_was_run():
    entry = signature.find_failure("GRD001")
    assert entry
    kept = signature.DiskCache(signature.cache_folder({"XDG_CACHE_HOME": os.environ["XDG_CACHE_HOME"]}) / "signatures")
    both = signature.pair(entry.failure.inject)
    first = signature._run_and_store(entry, both, kept)
    signature._RECENT.clear()
    again = signature._load_seed(entry, both, kept)
    assert again is not None
    assert encode_json(asdict(again.broken)) == encode_json(asdict(first.broken))
    assert again.finding == first.finding


def test_every_failure_has_a_name_for_what_is_kept_of_it():
    injected = [entry for entry in catalogue().values() if entry.failure.inject]
    keys = {signature._key(entry, pair(entry.failure.inject)) for entry in injected}
    assert len(keys) == len(injected)


def test_what_cannot_be_injected_has_no_curves():
    assert answer(Query(code="CKP003")) == {"code": "CKP003", "curves": None}
    with pytest.raises(InvalidConfig, match="no failure"):
        answer(Query(code="nothing"))
