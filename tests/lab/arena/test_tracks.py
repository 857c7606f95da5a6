"""The fingerprint of a track changes with everything that affects results."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trueloop.core.errors import InvalidConfig
from trueloop.lab.arena.tracks import DIGITS, TRACKS, find_track


def test_tracks_have_different_fingerprints():
    assert len({track.fingerprint for track in TRACKS.values()}) == len(TRACKS)


@pytest.mark.parametrize(
    "changed", [{"target": 0.9}, {"model": "model = None\n"}, {"data": "train = None\n"}, {"examples": 1}]
)
def test_a_changed_task_has_another_fingerprint(changed):
    assert replace(DIGITS, **changed).fingerprint != DIGITS.fingerprint


def test_a_changed_script_has_another_fingerprint(monkeypatch: pytest.MonkeyPatch):
    before = DIGITS.fingerprint
    monkeypatch.setattr("trueloop.lab.arena.script._END", "")
    assert DIGITS.fingerprint != before


def test_the_description_is_not_part_of_the_fingerprint():
    assert replace(DIGITS, description="Easy.", title="Digits").fingerprint == DIGITS.fingerprint


def test_the_error_of_an_unknown_track_lists_the_tracks():
    with pytest.raises(InvalidConfig, match="digits, spiral, deep"):
        find_track("imagenet")
