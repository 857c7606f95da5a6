"""Tracks are the same for everybody, and a changed one is another one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trueloop.core.errors import InvalidConfig
from trueloop.lab.arena.tracks import DIGITS, TRACKS, find_track


def test_no_two_tracks_share_a_mark():
    assert len({track.fingerprint for track in TRACKS.values()}) == len(TRACKS)


@pytest.mark.parametrize(
    "changed", [{"target": 0.9}, {"model": "model = None\n"}, {"data": "train = None\n"}, {"examples": 1}]
)
def test_a_track_that_differs_in_what_is_asked_has_another_mark(changed):
    assert replace(DIGITS, **changed).fingerprint != DIGITS.fingerprint


def test_another_way_of_writing_the_loop_makes_another_track(monkeypatch: pytest.MonkeyPatch):
    before = DIGITS.fingerprint
    monkeypatch.setattr("trueloop.lab.arena.script._END", "")
    assert DIGITS.fingerprint != before


def test_words_about_a_track_are_no_part_of_it():
    assert replace(DIGITS, description="Easy.", title="Digits").fingerprint == DIGITS.fingerprint


def test_an_unknown_track_is_refused_with_those_there_are():
    with pytest.raises(InvalidConfig, match="digits, spiral, deep"):
        find_track("imagenet")
