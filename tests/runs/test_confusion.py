import pytest

from trueloop.core.protocols import Evaluated
from trueloop.runs.confusion import MAX_CLASSES, confusion_section
from trueloop.runs.journal import read_journal


def page_of(run, synthetic, matrix, names=None, split="val"):
    facts = {"class_names": names} if names else {}
    evaluated = Evaluated(
        update=5, epoch=1, split=split, metrics={"loss": 1.0}, tables={"confusion": matrix}, seconds=0.1, best=True
    )
    return confusion_section(read_journal(run([synthetic.started(facts=facts), evaluated])))


def test_rows_are_the_true_classes(run, synthetic):
    page = page_of(run, synthetic, [[8, 2], [0, 5]], ["cat", "dog"])
    assert "On the val set, after update 5: 13 of 15 correct." in page
    assert "Most frequent error: cat predicted as dog, 2 times." in page
    assert (
        '<th scope="row">cat</th><td class="hit" style="--share:80%">8</td><td class="miss" style="--share:45%">2</td>'
        in page
    )
    assert '<td class="recall">80.0 %</td>' in page
    assert '<td class="zero">·</td><td class="hit" style="--share:100%">5</td><td class="recall">100.0 %</td>' in page


def test_the_test_set_comes_before_validation(run, synthetic):
    assert "On the test set, with the final weights: 170 of 181 correct." in confusion_section(
        read_journal(run(synthetic.finished_run()))
    )


def test_a_class_without_examples_has_no_recall(run, synthetic):
    page = page_of(run, synthetic, [[0, 0], [0, 3]])
    assert '<td class="recall">none</td>' in page
    assert "No errors." in page


def test_wrong_number_of_names_falls_back_to_indices(run, synthetic):
    assert '<th scope="row">1</th>' in page_of(run, synthetic, [[1, 0], [0, 3]], ["only one"])


def test_many_classes_show_their_worst_pairs(run, synthetic):
    size = MAX_CLASSES + 1
    matrix = [[9 if i == j else 0 for j in range(size)] for i in range(size)]
    matrix[3][7] = 6
    page = page_of(run, synthetic, matrix)
    assert "31 classes are too many to draw" in page
    assert "<td>3</td><td>7</td><td>6</td><td>40.0 %</td>" in page
    assert page.count("<tr>") == 2


@pytest.mark.parametrize("table", [None, [], 3, [[1, 2]], [1, 2], [[1, 2], [3]]])
def test_only_square_matrices_are_shown(run, synthetic, table):
    assert page_of(run, synthetic, table) == ""
