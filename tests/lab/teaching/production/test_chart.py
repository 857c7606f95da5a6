"""The chart matches the program: each box has its lines, each edge leads to a box, and the loops are closed."""

from __future__ import annotations

import pytest

from trueloop.lab.teaching.production.chart import Chart, chart
from trueloop.lab.teaching.production.program import production_program
from trueloop.lab.teaching.production.selection import NAMES, Selection, select

SELECTIONS = [Selection(), select(*NAMES, precision="fp16"), *(select(name) for name in NAMES)]
SNIPPETS_WITHOUT_A_BOX = {"settings", "totals"}


def chart_of(selection: Selection) -> Chart:
    return chart(selection, production_program(selection))


def edges_by_name(drawing: Chart) -> set[tuple[str, str, str]]:
    return {(drawing.boxes[edge.start].name, drawing.boxes[edge.end].name, edge.label) for edge in drawing.edges}


@pytest.mark.parametrize("selection", SELECTIONS, ids=lambda on: "+".join(on.enabled) or "minimal")
def test_every_snippet_of_the_program_has_a_box(selection):
    program = production_program(selection)
    spans = {span for box in chart(selection, program).boxes for span in box.lines}
    for span in program.spans:
        assert ((span.first, span.last) in spans) == (span.name not in SNIPPETS_WITHOUT_A_BOX), span.name


@pytest.mark.parametrize("selection", SELECTIONS, ids=lambda on: "+".join(on.enabled) or "minimal")
def test_every_box_is_reachable_and_leads_to_the_end(selection):
    drawing = chart_of(selection)
    for backwards in (False, True):
        reached, waiting = set(), [len(drawing.boxes) - 1 if backwards else 0]
        while waiting:
            box_index = waiting.pop()
            if box_index not in reached:
                reached.add(box_index)
                ends = [(e.end, e.start) if backwards else (e.start, e.end) for e in drawing.edges]
                waiting += [end for start, end in ends if start == box_index]
        assert reached == set(range(len(drawing.boxes)))


@pytest.mark.parametrize("selection", SELECTIONS, ids=lambda on: "+".join(on.enabled) or "minimal")
def test_only_questions_have_two_outgoing_edges(selection):
    drawing = chart_of(selection)
    for index, box in enumerate(drawing.boxes):
        answers = sorted(edge.label for edge in drawing.edges if edge.start == index)
        assert answers == {"ask": ["no", "yes"], "do": [""], "end": []}[box.kind], box
    for edge in drawing.edges:
        assert {"down": edge.end == edge.start + 1, "back": edge.end < edge.start, "skip": edge.end > edge.start + 1}[
            edge.direction
        ]


def test_edges_on_one_lane_do_not_cross():
    for selection in SELECTIONS:
        side_edges = [edge for edge in chart_of(selection).edges if edge.direction != "down"]
        for one in side_edges:
            for other in side_edges:
                if one is not other and (one.direction, one.lane) == (other.direction, other.lane):
                    low, high = sorted([sorted(one[:2]), sorted(other[:2])])
                    assert low[1] <= high[0] or low[1] >= high[1]


def test_the_edges_of_the_loops_in_the_minimal_program():
    assert {edge for edge in edges_by_name(chart_of(Selection())) if edge[2] != "yes"} >= {
        ("clear", "batches", ""), ("print", "epochs", ""), ("batches", "print", "no"), ("epochs", "end", "no")
    }  # fmt: skip


def test_an_incomplete_window_continues_with_the_next_batch():
    assert ("window", "batches", "no") in edges_by_name(chart_of(select("accumulation")))
    assert ("stop", "end", "no") in edges_by_name(chart_of(select("early_stopping")))
