"""Games, answers, films and evidence of "Guess the bug"."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from trueloop.app.web.wire_format import encode_json
from trueloop.core.errors import InvalidConfig
from trueloop.failures.load import catalogue
from trueloop.lab.teaching import film as films
from trueloop.lab.views import guess
from trueloop.lab.views.guess import LOOK_ALIKES, NOT_SEEN, Query, answer, candidates, game, possible_answers

VISIBLE = 0.05  # mean relative difference between the curves of both runs in some quantity


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(guess, "MAX_FIRST_RUN_S", math.inf)  # however busy the machine is


def test_a_seed_is_the_same_ten_rounds_everywhere():
    codes = [entry.code for entry in game(7)]
    assert codes == [entry.code for entry in game(7)] != [entry.code for entry in game(8)]
    assert len(set(codes)) == 10
    assert {entry.code for seed in range(40) for entry in game(seed)} == {entry.code for entry in candidates()}


def test_one_of_four_answers_is_right_and_none_looks_like_it():
    for seed in range(20):
        for entry in game(seed):
            answers = possible_answers(entry, seed)
            assert [each.code for each in answers] == [each.code for each in possible_answers(entry, seed)]
            assert len({each.family for each in answers}) == 4
            codes = {each.code for each in answers}
            assert entry.code in codes
            assert all(codes & group <= {entry.code} for group in LOOK_ALIKES if entry.code in group)
    places = {[each.code for each in possible_answers(entry, 3)].index(entry.code) for entry in game(3)}
    assert len(places) > 1, "the right answer is not always at the same place"


def test_the_film_does_not_tell_the_answer_and_the_evidence_has_a_line(monkeypatch):
    monkeypatch.setattr(films, "SETTINGS", replace(films.SETTINGS, epochs=2))
    entry = game(1)[1]
    reply = answer(Query(seed=1, round=2))
    assert reply["answers"] == [{"code": e.code, "title": e.failure.title} for e in possible_answers(entry, 1)]
    assert entry.code not in encode_json(reply["film"])
    assert reply["films"] == []
    monkeypatch.setattr(guess, "film_run", lambda text, scripts: pytest.fail("the scripts were run again"))
    assert answer(Query(seed=1, round=2)) == reply
    evidence = answer(Query(code="never-cleared", reveal=True))
    assert (evidence["code"], evidence["finding"]["code"]) == ("GRD001", "GRD001")
    line = evidence["lines"][evidence["line"] - evidence["start"]]
    assert "".join(text for _, text in line).strip() == "optimizer.step()"
    assert evidence["finding"]["path"] == "simulation.py"
    assert evidence["address"].endswith("&bugs=GRD001&twin=1")


def test_the_film_of_one_failure_is_answered_without_a_game(monkeypatch):
    monkeypatch.setattr(films, "SETTINGS", replace(films.SETTINGS, epochs=1))
    reply = answer(Query(code="GRD001"))
    assert reply["answers"] == []
    assert [each["code"] for each in reply["films"]] == [entry.code for entry in candidates()]
    for code in ("nothing", "CKP003"):
        with pytest.raises(InvalidConfig, match="no film"):
            answer(Query(code=code))


def test_a_busy_machine_computes_a_film_over_two_requests(monkeypatch):
    monkeypatch.setattr(films, "SETTINGS", replace(films.SETTINGS, epochs=1))
    monkeypatch.setattr(guess, "MAX_FIRST_RUN_S", 0.0)
    texts = []
    run = guess.film_run
    monkeypatch.setattr(guess, "film_run", lambda text, scripts: texts.append(text) or run(text, scripts))
    assert answer(Query(seed=3)) == {"film": None}
    monkeypatch.setattr(guess, "MAX_FIRST_RUN_S", math.inf)
    assert answer(Query(seed=3))["film"]["updates"] > 0
    assert len(texts) == len(set(texts)) == 2, "the first run was cached"


@pytest.mark.slow(reason="films every failure")
def test_every_hidden_failure_is_visible_and_found_and_no_other_is():
    for code, entry in catalogue().items():
        if entry.failure.inject is None:
            continue
        reply = answer(Query(code=code))
        healthy, broken = (reply["film"][which]["curves"] for which in ("healthy", "broken"))
        seen = max(difference(healthy[name][1], broken[name][1]) for name in films.SHOWN) > VISIBLE
        found = answer(Query(code=code, reveal=True))["finding"]
        assert (seen and found is not None) == (code not in NOT_SEEN), code
    assert not torch.distributed.is_initialized(), "a script has left its process group to the next one"


def difference(one: list[float], other: list[float]) -> float:
    pairs = list(zip(one, other, strict=False))
    if not pairs:
        return float(len(one) != len(other))
    finite = [isinstance(b, float | int) and math.isfinite(b) for _, b in pairs]
    apart = [abs(a - b) / max(abs(a) + abs(b), 1e-9) if ok else 1 for (a, b), ok in zip(pairs, finite, strict=True)]
    return sum(apart) / len(pairs)
