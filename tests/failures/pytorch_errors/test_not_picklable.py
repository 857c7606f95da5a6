"""What cannot be sent to a worker that is spawned."""

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


@pytest.mark.filterwarnings("ignore:Got pickle error")  # torch says so first
@pytest.mark.parametrize(("held", "words"), [("lambda x: x", "a lambda has none"), ("threading.Lock()", "lock")])
def test_in_a_dataset(explained: Callable[..., ExplainedError], held: str, words: str):
    explained(SCRIPT.format(held=held), "not-picklable", words, "at the top of a module")


def test_a_pickle_of_the_programs_own(unexplained: Callable[[str], BaseException]):
    unexplained("import pickle, torch\ndef f():\n    return pickle.dumps(lambda x: x)\nf()\n")
