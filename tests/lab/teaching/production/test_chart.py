"""The chart is that of the text: every box stands for lines of it, every way leads somewhere, and the loops close."""

from __future__ import annotations

import pytest

from trueloop.lab.teaching.production.chart import Chart, chart
from trueloop.lab.teaching.production.program import production_program
from trueloop.lab.teaching.production.selection import NAMES, Selection, selected

CHOSEN = [Selection(), selected(*NAMES, precision="fp16"), *(selected(name) for name in NAMES)]
PIECES_WITHOUT_A_BOX = {"settings", "totals"}


def drawn(selection: Selection) -> Chart:
    return chart(selection, production_program(selection))


def ways(of: Chart) -> set[tuple[str, str, str]]:
    return {(of.boxes[edge.start].name, of.boxes[edge.end].name, edge.label) for edge in of.edges}


@pytest.mark.parametrize("selection", CHOSEN, ids=lambda on: "+".join(on.enabled) or "minimal")
def test_every_piece_of_the_text_has_its_box(selection):
    program = production_program(selection)
    held = {place for box in chart(selection, program).boxes for place in box.lines}
    for span in program.spans:
        assert ((span.first, span.last) in held) == (span.name not in PIECES_WITHOUT_A_BOX), span.name


@pytest.mark.parametrize("selection", CHOSEN, ids=lambda on: "+".join(on.enabled) or "minimal")
def test_every_box_can_be_reached_and_can_reach_the_end(selection):
    found = drawn(selection)
    for turned in (False, True):
        reached, waiting = set(), [len(found.boxes) - 1 if turned else 0]
        while waiting:
            here = waiting.pop()
            if here not in reached:
                reached.add(here)
                waiting += [e.start if turned else e.end for e in found.edges if (e.end if turned else e.start) == here]
        assert reached == set(range(len(found.boxes)))


@pytest.mark.parametrize("selection", CHOSEN, ids=lambda on: "+".join(on.enabled) or "minimal")
def test_a_question_has_two_answers_and_nothing_else_forks(selection):
    found = drawn(selection)
    for place, box in enumerate(found.boxes):
        answers = sorted(edge.label for edge in found.edges if edge.start == place)
        assert answers == {"ask": ["no", "yes"], "do": [""], "end": []}[box.kind], box
    for edge in found.edges:
        assert {"down": edge.end == edge.start + 1, "back": edge.end < edge.start, "skip": edge.end > edge.start + 1}[
            edge.direction
        ]


def test_ways_on_one_lane_do_not_cross():
    for selection in CHOSEN:
        around = [edge for edge in drawn(selection).edges if edge.direction != "down"]
        for one in around:
            for other in around:
                if one is not other and (one.direction, one.lane) == (other.direction, other.lane):
                    low, high = sorted([sorted(one[:2]), sorted(other[:2])])
                    assert low[1] <= high[0] or low[1] >= high[1]


def test_the_loops_of_the_minimal_program():
    assert {way for way in ways(drawn(Selection())) if way[2] != "yes"} >= {
        ("clear", "batches", ""), ("print", "epochs", ""), ("batches", "print", "no"), ("epochs", "end", "no")
    }  # fmt: skip


def test_a_window_that_is_not_full_takes_another_batch():
    assert ("window", "batches", "no") in ways(drawn(selected("accumulation")))
    assert ("stop", "end", "no") in ways(drawn(selected("early_stopping")))
