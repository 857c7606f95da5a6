"""One thread per test: two shared cores make torch's thread pool slower, not faster."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    import torch

    torch.set_num_threads(1)
