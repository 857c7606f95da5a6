"""EVL037: totals that nothing is added to."""

import pytest

LOOP = """
import torch
{before}
for epoch in range(9):
    running_loss, hits = 0.0, 0
    total = 0
    for i, (x, y) in enumerate(loader):
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        {inside}
    {after}
"""
FAULTY = {
    "printed": ("", "pass", "print(total / len(loader))  # <- EVL037"),
    "divided in place": ("", "pass", "total /= len(loader)  # <- EVL037"),
    "assigned": ("", "hits += (y == 1).sum()", "total = total / (i + 1)  # <- EVL037"),
    "another total is added to": ("", "hits += 1", "log(hits / 9, total / 9)  # <- EVL037"),
}
CORRECT = {
    "added": ("", "total += loss.item()", "print(total / len(loader))"),
    "assigned in the loop": ("", "total = total + loss.item()", "print(total / len(loader))"),
    "in a function": ("def add():\n    global total\n    total += 1", "add()", "print(total / len(loader))"),
    "set by the loop": ("", "for total in range(3): pass", "print(total / len(loader))"),
    "not divided": ("", "pass", "print(total)"),
    "a condition": ("", "pass", "if total != 0: print(total / len(loader))"),
    "a comment": ("", "pass  # total += loss.item()", "print(total / len(loader))"),
    "a divisor": ("", "pass", "print(loss / max(total, 1))"),
}


@pytest.mark.parametrize("parts", FAULTY.values(), ids=FAULTY)
def test_lint_reports_totals_that_stay_zero(lint_reports, parts):
    before, inside, after = parts
    lint_reports(LOOP.format(before=before, inside=inside, after=after))


@pytest.mark.parametrize("parts", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_other_totals(lint_codes, parts):
    before, inside, after = parts
    assert "EVL037" not in lint_codes(LOOP.format(before=before, inside=inside, after=after))


def test_lint_accepts_a_total_of_another_function(lint_codes):
    assert "EVL037" not in lint_codes("""
def run(loader, total_loss):
    for x in loader:
        use(x)
    return total_loss / len(loader)
""")


SCORES = """
import numpy as np
import torch
def evaluate(model, loader):
    scores = []
    with torch.no_grad():
        for x, y in loader:
            score = metric(model(x), y)
            {inside}
    {after}
"""


@pytest.mark.parametrize(
    ("inside", "after"),
    [
        ("pass", "print(np.mean(scores))  # <- EVL037"),
        ("# scores.append(score)", "return np.mean(scores), len(scores)  # <- EVL037"),
        ("print(score)", "return 100 * np.nanmean(scores)  # <- EVL037"),
    ],
)
def test_lint_reports_the_mean_of_an_empty_list(lint_reports, inside, after):
    lint_reports(
        SCORES.format(inside=inside, after=after).replace("            # scores", "            pass  # scores")
    )


@pytest.mark.parametrize(
    ("inside", "after"),
    [
        ("scores.append(score)", "print(np.mean(scores))"),
        ("scores += [score]", "print(np.mean(scores))"),
        ("add(scores, score)", "print(np.mean(scores))"),
        ("kept = scores", "kept.append(1)\n    print(np.mean(scores))"),
        ("pass", "scores = gather(model)\n    print(np.mean(scores))"),
        ("pass", "print(np.mean(scores) if scores else 0)"),
    ],
)
def test_lint_accepts_means_of_lists_that_may_be_filled(lint_codes, inside, after):
    assert "EVL037" not in lint_codes(SCORES.format(inside=inside, after=after))
