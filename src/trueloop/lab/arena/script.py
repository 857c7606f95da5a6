"""Write the script of an entry: the plain PyTorch program that the judge runs.

The script contains only bounded numbers and words from a fixed list, never untrusted text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from trueloop.lab.arena.entry import Entry

if TYPE_CHECKING:
    from trueloop.lab.arena.tracks import Track

REFERENCE_UPDATES: Final = 100  # length of the reference loop, which takes 0.05 s


def write_script(track: Track, entry: Entry, seed: int, *, practice: bool = False) -> str:
    """Write an entry as a program.

    Args:
        track: the task.
        entry: the settings.
        seed: seed of all random numbers.
        practice: use only the first held-out split; the second split is for the judge.

    Returns:
        A script that ends when the target is reached or the budget is spent. Its ``curve`` holds (update, examples,
        held-out accuracy) after each update; ``reached`` is the update that reached the target, or None.
    """
    parts = [
        _head(track, seed, practice=practice),
        _imports(track, entry),
        _constants(track, entry, seed),
        track.data,
        *(["del second  # only for the judge\n"] if practice else []),
        _loader(entry),
        track.model + _initialisation(track, entry),
        _optimizer(entry),
        *_schedule(entry),
        _criterion(entry),
        _EVALUATE,
        _loop(entry, practice=practice),
        _END,
    ]
    return "".join(f"{part.rstrip()}{gap}" for part, gap in zip(parts, _blank_lines(parts), strict=True))


def write_reference_script(track: Track, seed: int) -> str:
    """Write the reference loop for timing: the track's baseline with a fixed number of updates."""
    unreachable = replace(track, target=1.01)  # no accuracy is above 1
    return write_script(unreachable, replace(track.baseline, updates=REFERENCE_UPDATES), seed)


def _blank_lines(parts: list[str]) -> Iterator[str]:
    """Yield the blank lines after each part: two around functions, one elsewhere."""
    for part, following in zip(parts, [*parts[1:], None], strict=True):
        needs_two = following is not None and ("def " in part.splitlines()[0] or following.startswith("def "))
        yield "\n" if following is None else "\n\n\n" if needs_two else "\n\n"


def _head(track: Track, seed: int, *, practice: bool) -> str:
    judged = "the first held-out split (practice)" if practice else "two held-out splits"
    return (
        f'"""Arena, track "{track.name}", seed {seed}: {track.target:.0%} on {judged} in as few updates as possible."""'
    )


def _imports(track: Track, entry: Entry) -> str:
    import_lines = {"import time", *(line for line in track.imports if line.startswith("import "))}
    if entry.schedule == "cosine":
        import_lines.add("import math")
    third_party = {
        "import torch",
        "from torch import nn",
        "from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset",
        *(line for line in track.imports if line.startswith("from ")),
    }
    standard = sorted(import_lines) + (["from itertools import islice"] if entry.accumulation > 1 else [])
    third_party_lines = sorted(third_party, key=lambda line: (line.startswith("from"), line))
    return "\n".join([*standard, "", *third_party_lines])


def _constants(track: Track, entry: Entry, seed: int) -> str:
    lines = [f"SEED = {seed}", f"TARGET = {track.target}"]
    if entry.accumulation > 1:
        lines.append(f"ACCUMULATION = {entry.accumulation}  # batches per update")
    if entry.warmup:
        lines.append(f"WARMUP = {entry.warmup}")
    lines += [f"UPDATES = {entry.updates}", f"EXAMPLES = {track.examples}  # to train on, at most"]
    return "\n".join([*lines, "", "torch.set_num_threads(1)", "torch.manual_seed(SEED)"])


def _loader(entry: Entry) -> str:
    return f"""\
dataset = TensorDataset(*train)
batches = BatchSampler(RandomSampler(dataset), batch_size={entry.batch}, drop_last=False)
loader = DataLoader(dataset, sampler=batches, batch_size=None)  # a batch is one index operation, not {entry.batch}
"""


def _initialisation(track: Track, entry: Entry) -> str:
    call = {
        "torch": "",
        "kaiming": f'nn.init.kaiming_normal_(layer.weight, nonlinearity="{track.gain}")',
        "xavier": f'nn.init.xavier_uniform_(layer.weight, gain=nn.init.calculate_gain("{track.gain}"))',
        "orthogonal": f'nn.init.orthogonal_(layer.weight, gain=nn.init.calculate_gain("{track.gain}"))',
    }[entry.initialisation]
    if not call:
        return ""
    return f"""\
for layer in model:
    if isinstance(layer, nn.Linear):
        {call}
        nn.init.zeros_(layer.bias)
"""


def _optimizer(entry: Entry) -> str:
    name = {
        "sgd": "SGD", "nesterov": "SGD", "adam": "Adam", "adamw": "AdamW", "rmsprop": "RMSprop", "adagrad": "Adagrad",
    }[entry.optimizer]  # fmt: skip
    arguments = [f"lr={entry.lr}"]
    if entry.momentum:
        arguments.append(f"momentum={entry.momentum}")
    if entry.optimizer == "nesterov":
        arguments.append("nesterov=True")
    if entry.optimizer in ("adam", "adamw"):
        arguments.append(f"betas=({entry.beta1}, {entry.beta2})")
    if entry.weight_decay or entry.optimizer == "adamw":  # AdamW's default is 0.01
        arguments.append(f"weight_decay={entry.weight_decay}")
    return f"optimizer = torch.optim.{name}(model.parameters(), {', '.join(arguments)})\n"


def _schedule(entry: Entry) -> Iterator[str]:
    if entry.schedule == "constant" and not entry.warmup:
        return
    progress = "(update - WARMUP) / (UPDATES - WARMUP)" if entry.warmup else "update / UPDATES"
    factor = {
        "constant": "1.0",
        "linear": f"1 - ({progress})" if entry.warmup else f"1 - {progress}",
        "cosine": f"0.5 * (1 + math.cos(math.pi * {progress}))",
    }[entry.schedule]
    warmup = ["    if update < WARMUP:", "        return (update + 1) / WARMUP"] if entry.warmup else []
    lines = [
        "def share(update):",
        '    """Return the factor of the learning rate at an update, counted from 0."""',
        *warmup,
        f"    return {factor}",
    ]
    yield "\n".join(lines)
    yield "scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, share)"


def _criterion(entry: Entry) -> str:
    smoothing = f"label_smoothing={entry.label_smoothing}" if entry.label_smoothing else ""
    return f"criterion = nn.CrossEntropyLoss({smoothing})\n"


_EVALUATE = '''\
def accuracy(inputs, targets):
    """Return the accuracy on a split, in eval mode and without a graph."""
    model.eval()
    with torch.no_grad():
        right = (model(inputs).argmax(1) == targets).sum().item()
    model.train()
    return right / len(targets)
'''


def _loop(entry: Entry, *, practice: bool) -> str:
    accumulates = entry.accumulation > 1
    noise = [f"inputs = inputs + {entry.input_noise} * torch.randn_like(inputs)"] if entry.input_noise else []
    scaled = " * len(targets) / size" if accumulates else ""
    backward = [*noise, f"loss = criterion(model(inputs), targets){scaled}", "loss.backward()"]
    if accumulates:
        forward_backward = [
            "size = sum(len(targets) for _, targets in window)",
            "for inputs, targets in window:",
            *(f"    {line}" for line in backward),
        ]
    else:
        forward_backward = backward
    clip = [f"nn.utils.clip_grad_norm_(model.parameters(), {entry.clip})"] if entry.clip else []
    schedule = ["scheduler.step()"] if entry.schedule != "constant" or entry.warmup else []
    second_condition = "" if practice else " and accuracy(*second) >= TARGET"
    body = [
        "optimizer.zero_grad()",
        *forward_backward,
        *clip,
        "optimizer.step()",
        *schedule,
        "train_s += time.process_time() - began  # CPU time: includes loading data, excludes evaluation",
        "",
        "update += 1",
        f"examples += {'size' if accumulates else 'len(targets)'}",
        "curve.append((update, examples, accuracy(*held_out)))",
        f"if curve[-1][-1] >= TARGET{second_condition}:",
        "    reached = update",
        "if reached or update == UPDATES or examples >= EXAMPLES:",
        "    break",
        "began = time.process_time()",
    ]
    source = _WINDOWS if accumulates else _BATCHES
    loop = "window in windows()" if accumulates else "inputs, targets in epochs()"
    lines = ["update, examples, train_s = 0, 0, 0.0", "curve, reached = [], None", "began = time.process_time()"]
    return "\n".join([source, "", *lines, f"for {loop}:", *(f"    {line}" if line else "" for line in body)])


_BATCHES = '''\
def epochs():
    """Batches, epoch after epoch."""
    while True:
        yield from loader
'''
_WINDOWS = '''\
def windows():
    """Lists of ACCUMULATION batches, epoch after epoch; the last one of an epoch may be shorter."""
    while True:
        drawn = iter(loader)
        while window := list(islice(drawn, ACCUMULATION)):
            yield window
'''
_END = """\
ended = f"reached {TARGET:.0%}" if reached else f"did not reach {TARGET:.0%}"
print(f"{ended} after {update} updates and {examples} examples: {curve[-1][-1]:.1%} held out")
"""
