"""The loss decreases over the first few batches: a smoke test.

The cheapest check before a long run: does the model learn at all?
"""

import math

from trueloop.core.formatting import format_count, format_float, format_percent
from trueloop.verification.evidence import Curve, Evidence, broken, holds
from trueloop.verification.proof import Proof
from trueloop.verification.proof_context import ProofContext


def loss_falls(context: ProofContext, *, batches: int = 5, passes: int = 2) -> Evidence:
    """Train on a few batches, twice each, and compare their mean loss before and after, with the same dropout.

    Args:
        batches: number of batches, read from the start of the loader.
        passes: number of passes over these batches.
    """
    training = context.training_copy()
    first_batches = context.batches(batches)
    initial_losses = [training.measure_loss(batch) for batch in first_batches]
    losses: list[float] = []
    for pass_index in range(max(passes, math.ceil(batches * passes / len(first_batches)))):
        for batch in first_batches:
            if not math.isfinite(losses[-1] if losses else initial_losses[0]):
                break
            if pass_index or losses:
                losses.append(training.measure_loss(batch))
            else:
                losses.append(initial_losses[0])
            training.update([batch])
    final_losses = [training.measure_loss(batch) for batch in first_batches]
    losses.append(final_losses[0])
    first, last = sum(initial_losses) / len(initial_losses), sum(final_losses) / len(final_losses)
    decrease = (first - last) / abs(first) if first else 0.0
    amount = f"{format_count(len(losses) - 1, 'update')} on {format_count(len(first_batches), 'batch')}"
    change = f"{format_float(first)} before and {format_float(last)} after {amount}"
    picture = Curve(title="Loss of each batch before its update", lines={"loss": losses})
    numbers = {"before": first, "after": last, "updates": len(losses) - 1}
    if not math.isfinite(last):
        return broken(
            f"The loss was {format_float(first)}, and is not finite after {format_count(len(losses) - 1, 'update')}.",
            cause="the loss",
            fix="Lower the learning rate; look for logarithms of 0 and divisions by 0.",
            numbers=numbers,
            charts=(picture,),
        )
    if decrease <= 0:
        return broken(
            f"The loss does not fall: {change}.",
            cause="the loss",
            fix="Check the sign of the loss, the learning rate, the frozen parameters, and the optimizer's parameters.",
            numbers=numbers,
            charts=(picture,),
        )
    return holds(f"The loss fell by {format_percent(decrease)}: {change}.", numbers=numbers, charts=(picture,))


PROOF = Proof(title="The loss falls", group="training", prove=loss_falls)
