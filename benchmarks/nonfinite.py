"""Measure which systems end with finite weights after one batch with a NaN, and with which exit code.

Every system trains in a separate process on twenty batches. The inputs of the sixth batch contain one NaN. Gradients
are clipped at 1.0; all other settings are the documented defaults.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping

import torch
from measure import Batches, console, table, write
from systems import by_hand, with_accelerate, with_hf_trainer, with_lightning
from systems.task import Task, fused_adamw
from torch import nn
from workloads import mlp, mlp_batches

UPDATES = 20
POISONED = 5  # counted from 0

SYSTEMS: Mapping[str, Callable[[Task], None]] = {
    "raw loop": by_hand.bare,
    "raw loop with clipping": by_hand.production,
    "Lightning": with_lightning.train,
    "Accelerate": with_accelerate.train,
    "HF Trainer": with_hf_trainer.train,
}


def by_trueloop(task: Task) -> None:
    """Train with trueloop's defaults."""
    from systems import with_trueloop

    with_trueloop.train(task, own_optimizer=True)


ALL = {"trueloop": by_trueloop, **SYSTEMS}


def train(name: str) -> None:
    """Train one system on the poisoned data, then print the share of finite weights and the loss as JSON."""
    clean = mlp_batches(UPDATES)
    inputs, targets = clean[POISONED]
    inputs = inputs.clone()
    inputs[3, 7] = float("nan")
    poisoned = [*clean[:POISONED], (inputs, targets), *clean[POISONED + 1 :]]
    model = mlp()
    task = Task(
        model=model, loss=nn.CrossEntropyLoss(), batches=Batches(poisoned, UPDATES), optimizer=fused_adamw,
        clip=1.0, cosine=True, record=True,
    )  # fmt: skip
    ALL[name](task)
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    print(json.dumps({"finite": weights.isfinite().float().mean().item(), "loss": mean_loss(model, clean)}))


@torch.no_grad()
def mean_loss(model: nn.Module, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """Return the mean loss over the clean data."""
    return sum(nn.functional.cross_entropy(model(x), y).item() for x, y in batches) / len(batches)


def judge(name: str) -> dict[str, object]:
    """Train in a child process; return its exit code with the state of the weights, or with its last error line."""
    child = subprocess.run([sys.executable, __file__, name], capture_output=True, text=True, check=False)
    if child.returncode:
        return {"exit": child.returncode, "last_words": child.stderr.strip().splitlines()[-1]}
    return {"exit": 0, **json.loads(child.stdout.strip().splitlines()[-1])}


def show(found: Mapping[str, Mapping[str, object]]) -> None:
    """Print the table and the verdict."""
    rows = [
        [name, *(f"{row[key]:{style}}" if key in row else "-" for key, style in (("finite", ".0%"), ("loss", ".3f"))),
         str(row["exit"]), str(row.get("last_words", ""))]
        for name, row in found.items()
    ]  # fmt: skip
    table(
        "One NaN in one batch",
        ["system", "finite weights", "loss on the clean data", "exit code", "last error line"],
        rows,
    )
    all_finite = found["trueloop"].get("finite") == 1.0
    console.print(f"{'[green]PASS[/]' if all_finite else '[red]MISS[/]'}  all weights of trueloop stay finite")


def main() -> None:
    """Train every system once, or the one named on the command line."""
    if len(sys.argv) > 1 and sys.argv[1] in ALL:
        train(sys.argv[1])
        return
    quick = "--quick" in sys.argv
    found = {name: judge(name) for name in ALL}
    show(found)
    write(
        "nonfinite", {"settings": {"updates": UPDATES, "poisoned": POISONED, "clip": 1.0}, "found": found}, quick=quick
    )


if __name__ == "__main__":
    main()
