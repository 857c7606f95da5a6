"""The sanitizer around a script, as the tests of healthy and guilty scripts have it."""

from __future__ import annotations

import importlib.util
import sys
from functools import partial
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def watched_run():
    spec = importlib.util.spec_from_file_location("watching", Path(__file__).parents[3] / "watching.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return partial(module.run, watched=True)
