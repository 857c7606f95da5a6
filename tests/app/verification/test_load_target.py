"""Files and recipes as subjects."""

from pathlib import Path

import pytest

from trueloop.app.verification.load_target import load_target
from trueloop.core.errors import InvalidConfig
from trueloop.verification.discover import find_proof
from trueloop.verification.proof import run_proof
from trueloop.verification.proof_context import ProofContext

FILE = """
import torch
from torch import nn

def build():
    return {"model": nn.Linear(4, 2), "loss": nn.CrossEntropyLoss(), "batch": (torch.randn(8, 4), torch.arange(8) % 2)}

def number():
    return 3
"""


def test_a_function_of_a_file(tmp_path: Path):
    path = tmp_path / "mine_to_verify.py"
    path.write_text(FILE)
    assert load_target(str(path)).batch[0].shape == (8, 4)
    with pytest.raises(InvalidConfig, match="int cannot be verified"):
        load_target(f"{path}:number")
    with pytest.raises(InvalidConfig, match="no function 'bild'"):
        load_target(f"{path}:bild")
    with pytest.raises(InvalidConfig, match="no recipe 'digit'"):
        load_target("digit")


@pytest.mark.parametrize(
    ("recipe", "proofs"),
    [
        ("digits", ("accumulation-exact", "initial-loss", "splits-disjoint")),
        ("tabular", ("accumulation-exact", "every-parameter-moves", "same-seed-same-run")),
        ("text", ("mask-respected", "future-unseen", "samples-independent")),
    ],
)
def test_recipes_hold_with_trueloops_own_loop(recipe: str, proofs: tuple[str, ...]):
    bench = ProofContext(load_target(recipe))
    for name in proofs:
        assert run_proof(find_proof(name), bench), name


def test_a_recipes_frozen_part_is_frozen():
    from dataclasses import replace

    from trueloop.app.verification.load_target import recipe_target
    from trueloop.recipes import registry

    recipe = registry.load("digits")
    bench = ProofContext(recipe_target(replace(recipe, train=replace(recipe.train, freeze=("0.*",)))))
    assert run_proof(find_proof("frozen-stay"), bench).numbers["frozen"] == 3
