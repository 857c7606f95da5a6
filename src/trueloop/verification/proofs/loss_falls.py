"""The loss decreases over the first few batches: a smoke test.

The cheapest check before a long run: does the model learn at all?
"""

import math

from trueloop.core.formatting import format_count, format_float, format_percent
from trueloop.verification.evidence import Curve, Evidence, broken, holds
from trueloop.verification.proof import Proof
from trueloop.verification.proof_context import ProofContext


def loss_falls(context: ProofContext, *, batches: int = 5, passes: int = 2) -> Evidence:
    """Train on a few batches, twice each, and compare each batch's loss before and after with the same dropout.

    Args:
        batches: number of batches, the first of the loader.
        passes: number of passes over them.
    """
    training = context.training_copy()
    few = context.batches(batches)
    before = [training.measure_loss(batch) for batch in few]
    seen: list[float] = []
    for number in range(max(passes, math.ceil(batches * passes / len(few)))):
        for batch in few:
            if not math.isfinite(seen[-1] if seen else before[0]):
                break
            if number or seen:
                seen.append(training.measure_loss(batch))
            else:
                seen.append(before[0])
            training.update([batch])
    after = [training.measure_loss(batch) for batch in few]
    seen.append(after[0])
    first, last = sum(before) / len(before), sum(after) / len(after)
    fell = (first - last) / abs(first) if first else 0.0
    done = f"{format_count(len(seen) - 1, 'update')} on {format_count(len(few), 'batch')}"
    change = f"{format_float(first)} before and {format_float(last)} after {done}"
    picture = Curve(title="Loss of each batch before its update", lines={"loss": seen})
    numbers = {"before": first, "after": last, "updates": len(seen) - 1}
    if not math.isfinite(last):
        return broken(
            f"The loss is not a number after {format_count(len(seen) - 1, 'update')}: {format_float(first)} before.",
            cause="the loss",
            fix="Lower the learning rate; look for logarithms of 0 and divisions by 0.",
            numbers=numbers,
            charts=(picture,),
        )
    if fell <= 0:
        return broken(
            f"The loss does not fall: {change}.",
            cause="the loss",
            fix="Check the sign of the loss, the learning rate, frozen parameters, and those of the optimizer.",
            numbers=numbers,
            charts=(picture,),
        )
    return holds(f"The loss fell by {format_percent(fell)}: {change}.", numbers=numbers, charts=(picture,))


PROOF = Proof(title="The loss falls", group="training", prove=loss_falls)
