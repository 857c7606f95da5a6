"""The pieces of the training loop itself: the six operations, and what a production loop puts around them."""

from __future__ import annotations

from typing import Final

from trueloop.lab.teaching.production.selection import Selection
from trueloop.lab.teaching.production.snippets import BEFORE, Snippet, autocast, fixed, lines


def _epochs(on: Selection) -> str:
    return f"for epoch in range({'start, ' if on.checkpoint else ''}EPOCHS):"


def _totals(on: Selection) -> str:
    return lines(
        "loss_sum = torch.zeros((), device=device)  # stays there: nothing waits for it" if on.logging else "",
        "count = 0  # examples in the window" if on.accumulation else "",
        "drawn = 0.0" if on.progress else "",
    )


def _batches(on: Selection) -> str:
    if on.accumulation or on.progress:
        return "for index, (inputs, targets) in enumerate(loader, start=1):"
    return "for inputs, targets in loader:"


def _forward(on: Selection) -> str:
    forward = "loss = loss_function(model(inputs), targets)"
    cast = autocast(on)
    return f"{cast}\n    {forward}" if cast else forward


def _backward(on: Selection) -> str:
    return "scaler.scale(loss).backward()" if on.scaled else "loss.backward()"


def _total(on: Selection) -> str:
    if not on.logging:
        return ""
    return "loss_sum += loss.detach()" if on.sums else "loss_sum += loss.detach() * len(targets)"


DRAW = """
if time.monotonic() - drawn > 0.2:  # by the clock, not by the batch
    drawn = time.monotonic()
    share = index / len(loader)
    print(f"epoch {epoch + 1}: {share:4.0%}", end="\\r", flush=True)
"""
WINDOW = """
count += len(targets)
if index % ACCUMULATE and index < len(loader):
    continue  # the window is not full, nor is this the end of the epoch
"""
DIVIDE = """
for parameter in model.parameters():
    parameter.grad /= count  # a sum over the window becomes its mean
count = 0
"""


def _clip(on: Selection) -> str:
    clip = "nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)"
    return f"norm = {clip}" if on.logging else clip


def _update(on: Selection) -> str:
    if not on.scaled:
        return "optimizer.step()"
    return lines(
        "scale = scaler.get_scale()" if on.schedule else "",
        "scaler.step(optimizer)",
        "scaler.update()",
    )


def _advance(on: Selection) -> str:
    if on.scaled:
        return lines("if scaler.get_scale() >= scale:  # lower: the update was skipped", "    schedule.step()")
    return "schedule.step()"


def _train_loss(on: Selection) -> str:
    return "train_loss = loss_sum.item() / len(train_data)" if on.logging else ""


JUDGE = """
if val_loss < best:
    best, best_weights, stale = val_loss, copy.deepcopy(model.state_dict()), 0
else:
    stale += 1
"""


def _record(on: Selection) -> str:
    return lines(
        "record = {",
        '    "time": time.time(),',
        '    "epoch": epoch + 1,',
        '    "train_loss": train_loss,',
        '    "val_loss": val_loss,' if on.evaluation else "",
        '    "accuracy": accuracy,' if on.evaluation else "",
        '    "learning_rate": schedule.get_last_lr()[0],' if on.schedule else "",
        '    "gradient_norm": norm.item(),' if on.clipping else "",
        "}",
        'with LOG.open("a") as file:',
        '    file.write(json.dumps(record) + "\\n")',
    )


def _save(on: Selection) -> str:
    return lines(
        "save(",
        "    {",
        '        "epoch": epoch + 1,',
        '        "model": model.state_dict(),',
        '        "optimizer": optimizer.state_dict(),',
        '        "schedule": schedule.state_dict(),' if on.schedule else "",
        '        "scaler": scaler.state_dict(),' if on.scaled else "",
        '        "best": best,' if on.early_stopping else "",
        '        "best_weights": best_weights,' if on.early_stopping else "",
        '        "stale": stale,' if on.early_stopping else "",
        '        "random": torch.get_rng_state(),' if on.seeding else "",
        '        "random_cuda": torch.cuda.get_rng_state_all(),' if on.seeding else "",
        "    }",
        ")",
    )


def _tell(on: Selection) -> str:
    if on.logging and on.evaluation:
        return lines(
            "print(",
            '    f"epoch {epoch + 1}: train loss {train_loss:.3f}, "',
            '    f"val loss {val_loss:.3f}, accuracy {accuracy:.3f}"',
            ")",
        )
    if on.evaluation:
        return 'print(f"epoch {epoch + 1}: val loss {val_loss:.3f}, accuracy {accuracy:.3f}")'
    if on.logging:
        return 'print(f"epoch {epoch + 1}: train loss {train_loss:.3f}")'
    loss = "loss.item() / len(targets)" if on.sums else "loss.item()"
    return f'print(f"epoch {{epoch + 1}}: loss {{{loss}:.3f}}")'


STOP = """
if stale >= PATIENCE:
    break
"""
LOOP: Final = (
    Snippet(name="epochs", write=_epochs, apart=True),
    Snippet(name="stop", write=fixed(STOP, lambda on: on.early_stopping), depth=1),
    Snippet(name="totals", write=_totals, depth=1),
    Snippet(name="batches", write=_batches, depth=1),
    Snippet(name="move", write=fixed("inputs, targets = inputs.to(device), targets.to(device)"), depth=2),
    Snippet(name="forward", write=_forward, depth=2),
    Snippet(name="backward", write=_backward, depth=2),
    Snippet(name="total", write=_total, depth=2),
    Snippet(name="draw", write=fixed(DRAW, lambda on: on.progress), depth=2),
    Snippet(name="window", write=fixed(WINDOW, lambda on: on.accumulation), depth=2),
    Snippet(
        name="unscale",
        write=fixed("scaler.unscale_(optimizer)", lambda on: on.scaled and on.clipping),
        depth=2,
    ),
    Snippet(name="divide", write=fixed(DIVIDE, lambda on: on.accumulation), depth=2),
    Snippet(name="clip", write=lambda on: _clip(on) if on.clipping else "", depth=2),
    Snippet(name="update", write=_update, depth=2),
    Snippet(name="advance", write=lambda on: _advance(on) if on.schedule else "", depth=2),
    Snippet(name="clear", write=fixed("optimizer.zero_grad()"), depth=2),
    Snippet(name="train loss", write=_train_loss, depth=1),
    Snippet(name="look", write=fixed("val_loss, accuracy = evaluate()", lambda on: on.evaluation), depth=1),
    Snippet(name="judge", write=fixed(JUDGE, lambda on: on.early_stopping), depth=1),
    Snippet(name="record", write=lambda on: _record(on) if on.logging else "", depth=1),
    Snippet(name="keep", write=lambda on: _save(on) if on.checkpoint else "", depth=1),
    Snippet(name="tell", write=_tell, depth=1),
    Snippet(
        name="put back",
        write=fixed("model.load_state_dict(best_weights)", lambda on: on.early_stopping),
        apart=True,
    ),
)
PROGRAM: Final = (*BEFORE, *LOOP)
"""Every piece, in the order of the text."""
