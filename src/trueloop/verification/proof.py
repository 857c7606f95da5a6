"""One proof, and how it is run: on a bench, with its time, whatever the subject's code does meanwhile."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from trueloop.core.errors import TrueloopError
from trueloop.verification.evidence import Evidence, NotApplicable, NotJudged, Verdict
from trueloop.verification.model_snapshot import ModelSnapshot
from trueloop.verification.proof_context import ProofContext
from trueloop.verification.rng_state import rng_state_preserved, seed_all

_INTERNAL_PATHS = (Path(__file__).parents[1], Path(torch.__file__).parent)

Group = Literal["model", "gradients", "training", "data"]
GROUPS: tuple[Group, ...] = ("model", "gradients", "training", "data")


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """One property, and how it is proved."""

    title: str
    """What holds: "Overfits one batch"."""
    group: Group
    prove: Callable[..., Evidence]
    """Of a `Bench`, and keyword-only options of its own."""
    timed: bool = False
    """It watches the time, and what was compiled runs compiled; for the others it runs as it was written."""
    name: str = ""
    """The file's name with hyphens, given by `discover`."""

    @property
    def doc(self) -> str:
        """What it does, in one sentence."""
        return (inspect.getdoc(self.prove) or "").partition("\n")[0]

    @property
    def options(self) -> tuple[str, ...]:
        """The names of its own options."""
        parameters = inspect.signature(self.prove).parameters.values()
        return tuple(each.name for each in parameters if each.kind is each.KEYWORD_ONLY)


def run_proof(proof: Proof, context: ProofContext, options: Mapping[str, Any] | None = None) -> Evidence:
    """Prove one property; the user's model and every generator are afterwards as they were.

    Args:
        proof: which.
        context: of the subject.
        options: of this proof.

    Raises:
        TrueloopError: the subject does not fit together: its loss and its batch, its optimizer and its model.
    """
    kept = ModelSnapshot(context.original)
    started = context.clock()
    try:
        with rng_state_preserved(context.loaders), torch.enable_grad(), nullcontext() if proof.timed else _eager_mode():
            seed_all(context.target.seed)
            evidence = _prove_safely(proof, context, options or {})
    finally:
        changed = kept.restore()
    if changed:
        evidence = Evidence(
            verdict=Verdict.NOT_JUDGED,
            message=f"The loss or step changed the model that was given ({', '.join(changed[:3])}), not the one that "
            "it was called with; it was put back.",
            fix="Use the model and the optimizer that are passed in, not ones from outside.",
        )
    return replace(evidence, proof=proof.name, title=proof.title, seconds=context.clock() - started)


def _eager_mode() -> AbstractContextManager[None]:
    """Let nothing run compiled: a graph that was made for one backward and one dtype refuses a second and another."""
    if "torch._dynamo" not in sys.modules:  # nobody has compiled anything
        return nullcontext()
    return torch.compiler.set_stance("force_eager")


def _prove_safely(proof: Proof, bench: ProofContext, options: Mapping[str, Any]) -> Evidence:
    try:
        return proof.prove(bench, **options)
    except NotApplicable as why:
        return Evidence(verdict=Verdict.NOT_APPLICABLE, message=str(why))
    except NotJudged as why:
        return Evidence(verdict=Verdict.NOT_JUDGED, message=str(why))
    except TrueloopError:
        raise
    except Exception as error:  # noqa: BLE001 - the subject's own code may raise anything; it is told, not hidden
        told = " ".join(str(error).split())[:300].rstrip(".")
        return Evidence(
            verdict=Verdict.NOT_JUDGED,
            message=f"The subject raised {type(error).__name__}: {told}{_user_location(error)}.",
            fix="Mend this first: the proof ran into it on a copy of your model and your own batch.",
        )


def _user_location(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not any(Path(frame.filename).is_relative_to(each) for each in _INTERNAL_PATHS)]
    return f" ({theirs[-1].filename}:{theirs[-1].lineno})" if theirs else ""
