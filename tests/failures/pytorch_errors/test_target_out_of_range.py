"""Targets and indices out of range: the number of classes or rows, and the value."""

from __future__ import annotations

from collections.abc import Callable

from trueloop.core.findings import ExplainedError

LABELS = """
import torch
from torch import nn
model = nn.Linear(4, 10)
for step in range(3):
    labels = {labels}  # <- created
    nn.functional.cross_entropy(model(torch.randn(64, 4)), labels)  # <- raised
"""


def test_labels_that_count_from_one(assert_explained: Callable[..., ExplainedError]):
    script = LABELS.format(labels="torch.arange(64) % 10 + 1")
    assert_explained(script, "target-out-of-range", "A target is 10", "10 classes: 0 to 9", "subtract 1")


def test_padding(assert_explained: Callable[..., ExplainedError]):
    script = LABELS.format(labels="torch.arange(64) % 10 - 1")
    assert_explained(script, "target-out-of-range", "A target is -1", "ignore_index=-1")


def test_an_embedding(assert_explained: Callable[..., ExplainedError]):
    explanation = assert_explained(
        """
        import torch
        from torch import nn
        class Tagger(nn.Module):
            def __init__(self, vocabulary):
                super().__init__()
                self.words = nn.Embedding(vocabulary, 8)
            def forward(self, tokens):
                return self.words(tokens)  # <- raised
        model = Tagger(100)
        batch = torch.full((64, 12), 110)  # <- created
        model(batch)
        """,
        "target-out-of-range",
        "`words` (Embedding) has 100 rows",
        "0 to 99",
    )
    assert [(site.line, words) for site, words in explanation.other_locations] == [(7, "the table is created here")]


def test_a_list_index_of_the_program(assert_unexplained: Callable[[str], BaseException]):
    error = assert_unexplained("import torch\n[1, 2][5]\n")
    assert isinstance(error, IndexError)
