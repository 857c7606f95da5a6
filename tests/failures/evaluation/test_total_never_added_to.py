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
