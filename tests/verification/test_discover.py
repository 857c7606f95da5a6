"""Every module defines a proof, and proofs are selected by name or group."""

import pkgutil
import re
from pathlib import Path

import pytest

from trueloop.core.errors import InvalidConfig
from trueloop.verification import proofs as package
from trueloop.verification.discover import all_proofs, find_proof, select_proofs


def test_every_file_is_a_proof():
    files = {file.name.replace("_", "-") for file in pkgutil.iter_modules(package.__path__)}
    assert set(all_proofs()) == files
    assert len(files) >= 15


@pytest.mark.parametrize("proof", all_proofs().values(), ids=all_proofs().keys())
def test_a_proof_tells_what_it_does(proof):
    assert proof.doc.endswith(".")
    assert len(proof.title) <= 60
    assert proof.prove.__name__ == proof.name.replace("-", "_")


def test_names_and_groups_choose():
    assert [proof.name for proof in select_proofs(["input-used,overfits_one_batch"])] == [
        "input-used",
        "overfits-one-batch",
    ]
    assert {proof.group for proof in select_proofs(["data"])} == {"data"}
    assert "input-used" not in {proof.name for proof in select_proofs((), ["model"])}


def test_a_word_that_names_nothing_gets_the_nearest():
    with pytest.raises(InvalidConfig, match="Did you mean 'overfits-one-batch'"):
        find_proof("overfit-one-batch")
    with pytest.raises(InvalidConfig, match="No proof is left"):
        select_proofs(["data"], ["data"])


def test_the_page_lists_every_proof():
    page = (Path(__file__).parents[2] / "docs" / "verify.md").read_text()
    assert set(re.findall(r"^\| `([a-z-]+)` \|", page.partition("## What is proved")[2], flags=re.MULTILINE)) == set(
        all_proofs()
    )
