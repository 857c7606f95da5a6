"""EVL031: thresholds that are chosen by the score on the test set."""

import pytest

HEAD = """
import numpy as np
import torch
from sklearn.metrics import accuracy_score, f1_score, precision_recall_curve

probs_test, y_test = np.random.rand(100), np.random.randint(2, size=100)
probs_val, y_val = np.random.rand(100), np.random.randint(2, size=100)
"""
FAULTY = {
    "a loop": """
best_acc, best_t = 0, 0.5
for t in np.linspace(0, 1, 101):
    predicted = (probs_test >= t).astype(int)
    acc = accuracy_score(y_test, predicted)  # <- EVL031
    if acc > best_acc:
        best_acc, best_t = acc, t
print(best_acc)
""",
    "max with a key": """
thresholds = [0.1 * i for i in range(1, 10)]
best = max(thresholds, key=lambda t: f1_score(y_test, probs_test > t))  # <- EVL031
""",
    "a list and argmax": """
def report(test_labels, test_scores):
    grid = np.arange(0.1, 0.9, 0.05)
    scores = [f1_score(test_labels, test_scores > t) for t in grid]  # <- EVL031
    best = np.argmax(scores)
    print(f"threshold {grid[best]:.2f}, F1 {scores[best]:.3f}")
""",
}
CORRECT = {
    "on validation data": """
best = max(np.arange(0.1, 0.9, 0.01), key=lambda t: f1_score(y_val, probs_val > t))
print(f1_score(y_test, probs_test > best))
""",
    "all scores are shown": """
for t in np.arange(0.1, 0.9, 0.1):
    print(t, f1_score(y_test, probs_test > t))
""",
    "a loop over other settings": """
best = 0
for seed in range(5):
    acc = accuracy_score(y_test, probs_test > 0.5)
    best = max(best, acc)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_searches_on_test_data(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_other_searches(lint_is_clean, script):
    lint_is_clean(HEAD + script)
