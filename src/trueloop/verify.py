"""Proofs on your own model and loop: ``trueloop.verify.overfits_one_batch(model, loss, batch)``.

Every proof is a function ``(model, loss=None, batch=None, **more)``, where ``more`` are fields of a `ProofTarget`
(``loader``, ``optimizer``, ``step``, ``mask``...) and the proof's own options. It returns `Evidence`, which is true in
a condition where the property holds; ``print(trueloop.verify.names())`` lists them. `prove` runs them all.

The proofs work on copies: the model, its gradients and modes, and all random generators are unchanged afterwards.
"""

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from torch import nn

from trueloop.verification.discover import all_proofs, find_proof, select_proofs
from trueloop.verification.evidence import Evidence, Verdict
from trueloop.verification.proof import Proof, run_proof
from trueloop.verification.proof_context import ProofContext
from trueloop.verification.proof_target import ProofTarget, check_field_names

__all__ = ["Evidence", "ProofTarget", "Verdict", "names", "prove"]


def names() -> list[str]:
    """Return the names of all proofs, as functions of this module: "overfits_one_batch"."""
    return [name.replace("-", "_") for name in all_proofs()]


def prove(
    target: Any,
    *,
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    on_start: Callable[[Proof], None] | None = None,
    on_end: Callable[[Evidence], None] | None = None,
) -> list[Evidence]:
    """Run all selected proofs.

    Args:
        target: a `ProofTarget`, a mapping of its fields, or a bare model.
        select: names or groups ("model", "gradients", "training", "data") of proofs; none = all.
        ignore: names or groups to leave out.
        on_start: called with every proof before it runs.
        on_end: called with the evidence of every proof.

    Raises:
        InvalidConfig: a proof or field is unknown.
        TrueloopError: the target is inconsistent.
    """
    todo = select_proofs(select, ignore)
    context = ProofContext(ProofTarget.from_user(target))
    found: list[Evidence] = []
    for proof in todo:
        if on_start is not None:
            on_start(proof)
        found.append(run_proof(proof, context))
        if on_end is not None:
            on_end(found[-1])
    return found


def _prove_one(
    proof: Proof,
    model: nn.Module | Callable[[], nn.Module] | ProofTarget,
    loss: Any = None,
    batch: Any = None,
    **more: Any,
) -> Evidence:
    own = {name: more.pop(name) for name in proof.options if name in more}
    if isinstance(model, ProofTarget):
        check_field_names(more, f"{proof.name} of a finished ProofTarget", also=proof.options)
        return run_proof(proof, ProofContext(model), own)
    check_field_names(more, proof.name, also=proof.options)
    return run_proof(proof, ProofContext(ProofTarget(model=model, loss=loss, batch=batch, **more)), own)


def __getattr__(name: str) -> Callable[..., Evidence]:
    if name not in names():
        if name.startswith("_"):
            raise AttributeError(f"module 'trueloop.verify' has no attribute {name!r}")
        find_proof(name)  # raises and names the closest
        raise AttributeError(f"write {find_proof(name).name.replace('-', '_')!r}, not {name!r}")
    proof = find_proof(name)
    function = partial(_prove_one, proof)
    function.__doc__ = inspect.getdoc(proof.prove)
    return function


def __dir__() -> list[str]:
    return sorted([*__all__, *names()])
