"""Objects that cannot be pickled for a spawned worker."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trueloop.core.findings import ExplainedError

SCRIPT = """
import threading
import torch
from torch.utils.data import DataLoader, Dataset
class Data(Dataset):
    def __init__(self):
        self.held = {held}
    def __len__(self):
        return 4
for batch in DataLoader(Data(), num_workers=1, multiprocessing_context="spawn"):  # <- raised
    pass
"""


@pytest.mark.filterwarnings("ignore:Got pickle error")  # PyTorch prints this before it raises
@pytest.mark.parametrize(
    ("held", "words"), [("lambda x: x", "a lambda cannot be pickled"), ("threading.Lock()", "lock")]
)
def test_in_a_dataset(assert_explained: Callable[..., ExplainedError], held: str, words: str):
    assert_explained(SCRIPT.format(held=held), "not-picklable", words, "at the top level of a module")


def test_a_pickle_by_the_program(assert_unexplained: Callable[[str], BaseException]):
    assert_unexplained("import pickle, torch\ndef f():\n    return pickle.dumps(lambda x: x)\nf()\n")
