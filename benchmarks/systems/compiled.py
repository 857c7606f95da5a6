"""Train with torch.compile in a hand-written loop: only the model is compiled, as usual, or the complete update."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from systems import by_hand
from systems.task import Journal, Task, cosine, decay_groups


def model_only(task: Task) -> None:
    """Train with the five lines of every tutorial and ``torch.compile(model)``."""
    by_hand.bare(task, call=torch.compile(task.model))


def update_as_one_program(task: Task) -> None:
    """Train with one program for forward, backward, clipping and AdamW, as an expert would write it for this run.

    The program accepts one batch shape, has no guard against non-finite values, and its optimizer has no state_dict.
    """
    assert task.clip is not None
    task.model.train()
    slots = [
        (p, torch.zeros_like(p), torch.zeros_like(p), group["weight_decay"])
        for group in decay_groups(task.model)
        for p in group["params"]
    ]
    rate, count = torch.tensor(1e-3), torch.zeros(())
    update = torch.compile(
        _update(task.model, task.loss, slots, rate, count, task.clip), fullgraph=True, options={"cpp_wrapper": True}
    )
    schedule_optimizer = torch.optim.SGD([torch.zeros(1)], lr=1e-3)  # torch's schedule needs an optimizer
    schedule = cosine(schedule_optimizer, task.updates)
    journal = Journal()
    with torch._dynamo.config.patch(trace_autograd_ops=True):  # noqa: SLF001
        for inputs, targets in task.batches:
            current_rate = schedule_optimizer.param_groups[0]["lr"]
            rate.fill_(current_rate)
            loss, norm = update(inputs, targets)
            schedule_optimizer.step()
            schedule.step()
            journal.add(loss, norm, current_rate)


def _update(model: nn.Module, criterion: nn.Module, slots: list[Any], rate: Tensor, count: Tensor, clip: float) -> Any:
    parameters = [slot[0] for slot in slots]

    def update(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        loss = criterion(model(inputs), targets)
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(each) for each in gradients]))
            share = (clip / (norm + 1e-6)).clamp(max=1.0)
            count.add_(1)
            bias1, bias2 = 1 - 0.9**count, 1 - 0.999**count
            for (parameter, average, square, decay), gradient in zip(slots, gradients, strict=True):
                g = gradient * share
                average.lerp_(g, 0.1)
                square.mul_(0.999).addcmul_(g, g, value=0.001)
                parameter.mul_(1 - rate * decay)
                parameter.sub_(rate / bias1 * average / ((square / bias2).sqrt() + 1e-8))
        return loss.detach(), norm

    return update
