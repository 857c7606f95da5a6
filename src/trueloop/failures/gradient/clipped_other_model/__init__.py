"""One model is clipped, and the optimizer of another model steps without clipping.

What you see
    Training of two models, such as a GAN or an actor and a critic, is as unstable as without clipping. The norm that
    the clipping function returns does not belong to the gradients of the step. Or the generator of a Wasserstein GAN
    makes the same sample for every noise, and the critic's loss grows without limit.

Why it happens
    ``clip_grad_norm_`` changes the gradients of the parameters that it gets. Which optimizer steps next is no matter to
    it, and the other model's gradients are there too: the loss of one model often reaches the other one. The weights of
    a Wasserstein critic are clipped in the same way, and a loop over the generator's parameters raises no error.

Fix
    Clip the parameters that the next step updates:

        loss_d.backward()
        nn.utils.clip_grad_norm_(discriminator.parameters(), 1.0)  # not generator.parameters()
        optimizer_d.step()

    Clip the weights of the critic, not those of the generator:

        for weight in critic.parameters():
            weight.data.clamp_(-0.01, 0.01)

When this is fine
    - Both models are clipped before both steps.
    - Only one model is clipped, and its optimizer steps after another one, before its gradients are cleared.
    - The limit is infinite: the norm is only measured.
    - The weights of both models are clipped, or only from below, so that none is negative.

How it is detected
    In a run, the sanitizer reports a line that clips gradients if, three times in succession, the next step used other
    gradients that were not clipped, and the clipped ones were cleared or clipped again before any step used them. The
    linter reports the same order of calls in a loop, if the models of the clipping and of the optimizer are certain. It
    also reports a loop that clips the weights of a model to a range below 1 after a step, if another model, whose
    weights are never clipped, is called on what the clipped model has made.

References
    Arjovsky et al., "Wasserstein GAN", 2017, arXiv:1701.07875
    torch.nn.utils.clip_grad_norm_, https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
"""

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.clipping import has_infinite_limit
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import CodePosition, Evidence
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.gradient.clipped_other_model.weights import find_clipped_weights, shares
from trueloop.tracing.events import GradientsCleared, GradientsClipped, Ref, StepTaken, TracingGap

MIN_TIMES: Final = 3
MAX_PENDING: Final = 64  # calls that clip before a step; more clip each parameter alone, and are not judged


@dataclass(slots=True)
class _Clip:
    """Gradients that were clipped and that no step has used."""

    line: CodePosition | None
    parameters: set[Ref]
    stepped: str = ""
    """The optimizer that stepped next, without clipping."""
    is_followed: bool = False


class Detector(BaseDetector):
    """Counts, for each line that clips, how often the next step belongs to another model."""

    activated_by = (GradientsClipped,)

    def __init__(self) -> None:
        self._pending: list[_Clip] = []
        self._wasted: Counter[CodePosition | None] = Counter()

    def on_gradients_clipped(self, event: GradientsClipped) -> Evidence | None:
        """Remember what is clipped; return evidence if the same was clipped before in vain."""
        parameters = set(event.parameters)
        found = self._drop(parameters)
        if parameters and not event.only_measured:
            self._pending = (
                [*self._pending, _Clip(event.location, parameters)] if len(self._pending) < MAX_PENDING else []
            )
        return found

    def on_step_taken(self, event: StepTaken) -> None:
        """Forget the clipped gradients that the step uses; the others wait for theirs."""
        stepped = set(event.with_gradient)
        used = [each for each in self._pending if each.parameters & stepped]
        for each in used:
            self._wasted[each.line] = 0
        self._pending = [each for each in self._pending if each not in used]
        for each in self._pending:
            each.stepped = "" if used or each.is_followed or not stepped else event.optimizer.name
            each.is_followed = True

    def on_gradients_cleared(self, event: GradientsCleared) -> Evidence | None:
        """Return evidence if clipped gradients are cleared before a step used them, for the third time."""
        return self._drop(set(event.parameters))

    def on_tracing_gap(self, event: TracingGap) -> None:
        """Discard what was clipped."""
        self._pending.clear()

    def _drop(self, parameters: set[Ref]) -> Evidence | None:
        found: Evidence | None = None
        for each in [clip for clip in self._pending if clip.parameters & parameters]:
            self._pending.remove(each)
            self._wasted[each.line] += bool(each.stepped)
            if each.stepped and self._wasted[each.line] == MIN_TIMES:
                found = Evidence(
                    message=f"{len(each.parameters)} gradients were clipped {MIN_TIMES} times, but the next step was "
                    f"that of `{each.stepped}`, which has other parameters and used unclipped gradients. No step used "
                    "the clipped ones.",
                    location=each.line,
                )
        return found


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each clipping of a model that does not step next, and whose gradients are cleared before it does.

    Then yield each clipping of weights that belong to another model than the one that scores.
    """
    yield from find_clipped_weights(source)
    clips = source.ops(OpKind.CLIP_GRADIENTS)
    for clip in clips:
        models = clip.subject.models()
        if not models or not clip.loops or has_infinite_limit(clip):
            continue
        loop = clip.loops[-1]
        inside = source.ops_in_loop(loop, root=clip.entry_point)
        after = [each for each in inside if each.index > clip.index] + [
            each for each in inside if each.index < clip.index
        ]
        kinds = (OpKind.STEP, OpKind.CLEAR_GRADIENTS, OpKind.CLIP_GRADIENTS)
        chain = [each for each in after if each.kind in kinds and each.is_unconditional_in(loop)]
        step = next((each for each in chain if each.kind is OpKind.STEP), None)
        if step is None or not clip.is_unconditional_in(loop) or not step.subject.models() or shares(step, clip):
            continue
        is_clipped = any(shares(each, step) for each in _clips_before(inside, step))
        later = next((each for each in chain if each.kind is not OpKind.CLIP_GRADIENTS and shares(each, clip)), None)
        if not is_clipped and later is not None and later.kind is OpKind.CLEAR_GRADIENTS:
            yield Hit(
                message=f"`{ast.unparse(clip.node)}` clips other gradients than `{ast.unparse(step.node)}` uses, and "
                f"they are cleared before a step uses them.",
                node=clip.node,
                related=((step.node, "this step uses gradients that were not clipped"),),
            )


def _clips_before(operations: list[Op], step: Op) -> list[Op]:
    """Return what is clipped between a step and the backward pass or step before it."""
    found: list[Op] = []
    for each in reversed([each for each in operations if each.index < step.index]):
        if each.kind in (OpKind.STEP, OpKind.BACKWARD):
            break
        found += [each] if each.kind is OpKind.CLIP_GRADIENTS else []
    return found


RULE: Final = Rule(
    required_words=("clip_grad|clamp&parameters(|clip_(&parameters(|.clip(&parameters(", ".step("), find=find
)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
critic = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer_g = torch.optim.Adam(generator.parameters(), lr=0.001)
optimizer_c = torch.optim.Adam(critic.parameters(), lr=0.001)
bce = nn.BCEWithLogitsLoss()
for step in range(20):
    fake = generator(torch.randn(32, 4))
    optimizer_c.zero_grad()
    real_loss = bce(critic(torch.randn(32, 2) + 1), torch.ones(32, 1))
    (real_loss + bce(critic(fake.detach()), torch.zeros(32, 1))).backward()
    nn.utils.clip_grad_norm_(critic.parameters(), 0.1)
    optimizer_c.step()
    optimizer_g.zero_grad()
    bce(critic(fake), torch.ones(32, 1)).backward()
    nn.utils.clip_grad_norm_(critic.parameters(), 0.2)
    optimizer_g.step()
"""

FAILURE = Failure(
    code="GRD027",
    title="Another model is clipped",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"(critic.parameters(), 0.2)": "(generator.parameters(), 0.2)"}),
    fix="Clip the parameters of the optimizer that steps next.",
    rule=RULE,
    detector=Detector,
)
