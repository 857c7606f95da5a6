"""Entries in words."""

from __future__ import annotations

from trueloop.cli.arena_entry_text import format_entry_settings, format_spread
from trueloop.lab.arena.entry import Entry
from trueloop.lab.arena.ranking import Spread


def test_settings_list_the_basic_ones_and_the_changed_ones():
    assert format_entry_settings(Entry()) == "sgd lr 0.1 batch 32"
    entry = Entry(optimizer="adamw", lr=0.003, batch=64, warmup=5, initialisation="kaiming", clip=1.0)
    assert format_entry_settings(entry) == "adamw lr 0.003 batch 64 warmup 5 clip 1 initialisation kaiming"


def test_a_spread_is_a_median_with_its_range():
    assert format_spread(Spread(median=79, lowest=50, highest=101)) == "79 (50 to 101)"
    assert format_spread(Spread(median=0.337, lowest=0.09, highest=12.34)) == "0.337 (0.0900 to 12.3)"
    assert format_spread(None) == "-"
