"""Find all proofs, and select them by name or group."""

import importlib
import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache

from trueloop.core.errors import InvalidConfig
from trueloop.core.formatting import did_you_mean
from trueloop.verification import proofs as package
from trueloop.verification.proof import GROUPS, Proof


@cache
def all_proofs() -> Mapping[str, Proof]:
    """Return every proof by its name, ordered by group.

    Raises:
        ValueError: a module has no ``PROOF``.
    """
    proofs: list[Proof] = []
    for module in pkgutil.iter_modules(package.__path__):
        proof = getattr(importlib.import_module(f"{package.__name__}.{module.name}"), "PROOF", None)
        if not isinstance(proof, Proof):
            raise ValueError(f"{module.name} has no PROOF.")
        proofs.append(replace(proof, name=module.name.replace("_", "-")))
    proofs.sort(key=lambda proof: (GROUPS.index(proof.group), proof.name))
    return {proof.name: proof for proof in proofs}


def find_proof(word: str) -> Proof:
    """Return the proof with this name, written with hyphens or underscores.

    Raises:
        InvalidConfig: there is no such proof; the message names the closest one.
    """
    name = word.strip().lower().replace("_", "-")
    proofs = all_proofs()
    if name not in proofs:
        hint = did_you_mean(name, proofs, cutoff=0.5)
        raise InvalidConfig(f"There is no proof {word!r}.", fix=f"{hint}The proofs are {', '.join(proofs)}.")
    return proofs[name]


def select_proofs(select: Iterable[str] = (), ignore: Iterable[str] = ()) -> list[Proof]:
    """Return the selected proofs.

    Args:
        select: names or groups, also comma-separated; empty = all proofs.
        ignore: names or groups to leave out.

    Raises:
        InvalidConfig: a name is unknown, or all proofs are ignored.
    """
    names, ignored = set(_expand_groups(select)), set(_expand_groups(ignore))
    selected = [proof for name, proof in all_proofs().items() if (not names or name in names) and name not in ignored]
    if not selected:
        raise InvalidConfig("No proof is left.", fix="Select a proof that is not ignored.")
    return selected


def _expand_groups(words: Iterable[str]) -> Iterator[str]:
    for word in (part.strip() for text in words for part in text.split(",")):
        if word in GROUPS:
            yield from (proof.name for proof in all_proofs().values() if proof.group == word)
        elif word:
            yield find_proof(word).name
