"""Generates the script of a simulation in plain PyTorch, which the page shows and the simulator runs."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Final

from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.lab.teaching import datasets
from trueloop.lab.teaching.datasets import AddedPoint
from trueloop.lab.teaching.simulation import Simulation

ACTIVATIONS: Final = {
    "relu": "nn.ReLU()",
    "tanh": "nn.Tanh()",
    "sigmoid": "nn.Sigmoid()",
    "gelu": "nn.GELU()",
    "linear": "nn.Identity()",
}


def network(settings: Simulation) -> str:
    """Return the code of a class ``Network``, whose ``layers`` are the hidden layers, and of its instance ``model``."""
    members, steps = [], []
    if settings.hidden:
        widths = pairwise([2, *settings.hidden])
        members.append(f"self.layers = nn.ModuleList([{', '.join(f'nn.Linear({a}, {b})' for a, b in widths)}])")
        steps.append("x = self.activation(layer(x))")
        if settings.batchnorm:
            norms = ", ".join(f"nn.BatchNorm1d({width})" for width in settings.hidden)
            members.append(f"self.norms = nn.ModuleList([{norms}])")
            steps = ["x = self.activation(norm(layer(x)))"]
        members.append(f"self.activation = {ACTIVATIONS[settings.activation]}")
        if settings.dropout:
            members.append(f"self.dropout = nn.Dropout({settings.dropout!r})")
            steps.append("x = self.dropout(x)")
    members.append(f"self.head = nn.Linear({[2, *settings.hidden][-1]}, {settings.classes})")
    head = "for layer, norm in zip(self.layers, self.norms):" if settings.batchnorm else "for layer in self.layers:"
    loop = [f"        {head}", *(f"            {step}" for step in steps)] if settings.hidden else []
    lines = [
        "class Network(nn.Module):",
        "    def __init__(self):",
        "        super().__init__()",
        *(f"        {member}" for member in members),
        "",
        "    def forward(self, x):",
        *loop,
        "        return self.head(x)",
        "",
        "",
        "model = Network()",
    ]
    return "\n".join(lines)


OPTIMIZERS: Final = {
    "sgd": "torch.optim.SGD(model.parameters(), lr={lr}{decay})",
    "momentum": "torch.optim.SGD(model.parameters(), lr={lr}, momentum=0.9{decay})",
    "nesterov": "torch.optim.SGD(model.parameters(), lr={lr}, momentum=0.9, nesterov=True{decay})",
    "adam": "torch.optim.Adam(model.parameters(), lr={lr}{decay})",
    "adamw": "torch.optim.AdamW(model.parameters(), lr={lr}{always})",
    "rmsprop": "torch.optim.RMSprop(model.parameters(), lr={lr}{decay})",
    "adagrad": "torch.optim.Adagrad(model.parameters(), lr={lr}{decay})",
}
SCHEDULES: Final = {
    "step": ("StepLR", "StepLR(optimizer, step_size=max(1, total_updates // 3), gamma=0.1)"),
    "cosine": ("CosineAnnealingLR", "CosineAnnealingLR(optimizer, T_max=total_updates)"),
    "warmup": ("LambdaLR", "LambdaLR(optimizer, lambda update: min(1, (update + 1) / warm_up))"),
    "onecycle": ("OneCycleLR", "OneCycleLR(optimizer, max_lr={lr}, total_steps=total_updates{cycled})"),
}
EVALUATION: Final = '''
def evaluate():
    """Return the mean loss and the accuracy over the held-out points."""
    model.eval()
    total = right = 0
    with torch.no_grad():
        for inputs, targets in held_out_loader:
            outputs = model(inputs)
            total += criterion(outputs, targets) * len(targets)
            right += (outputs.argmax(1) == targets).sum()
    return total.item() / len(held_out_set), right.item() / len(held_out_set)
'''
EVALUATE: Final = """
evaluations.append(evaluate())
print("epoch {}: held-out loss {:.4f}, accuracy {:.3f}".format(epoch + 1, *evaluations[-1]))
"""
SHARE: Final = """
# Weight each batch by its number of points, so that the window equals one large batch, even if it is short
in_window = min(window * batch_size, len(train_set) - number // window * window * batch_size)
loss = loss * len(targets) / in_window
"""
KEEP_BEST: Final = """
if evaluations[-1][1] > best:
    best, best_weights = evaluations[-1][1], copy.deepcopy(model.state_dict())
if (epoch + 1) % 5 == 0:
    best_model.load_state_dict(best_weights)
    with torch.no_grad():
        right = (best_model(points[held_out]).argmax(1) == labels[held_out]).sum().item()
    print("best accuracy {:.3f}, accuracy of the kept weights {:.3f}".format(best, right / len(held_out_set)))
"""


def teaching_loop(simulation: Simulation | None = None, added: Sequence[AddedPoint] = ()) -> TeachingLoop:
    """Generate the script of a simulation, without failures.

    Args:
        simulation: settings of the run; None = the defaults.
        added: training points in addition to those that the script creates.

    Returns:
        A loop whose ``settings`` are the simulation's fields.
    """
    settings = simulation or Simulation()
    accumulates = settings.accumulation > 1
    return TeachingLoop(
        title=f"A small network learns {datasets.PHRASES[settings.dataset]}.",
        imports=list(_imports(settings)),
        pieces=_setup_pieces(settings, added) | _loop_pieces(settings),
        batch_loop_head="for number, (inputs, targets) in enumerate(train_loader):"
        if accumulates
        else "for inputs, targets in train_loader:",
        window_condition="if (number + 1) % window == 0 or number + 1 == len(train_loader):" if accumulates else "",
        after_training="model.load_state_dict(best_weights)" if settings.keep_best else "",
        settings=asdict(settings) | {"batches": math.ceil((settings.training_points + len(added)) / settings.batch)},
    )


def _imports(settings: Simulation) -> Iterable[str]:
    yield from ("import torch", "from torch import nn", "from torch.utils.data import DataLoader, TensorDataset")
    yield from datasets.IMPORTS.get(settings.dataset, [])
    if settings.schedule != "constant":
        yield "import math"
        yield f"from torch.optim.lr_scheduler import {SCHEDULES[settings.schedule][0]}"
    if settings.keep_best:
        yield "import copy"


def _setup_pieces(settings: Simulation, added: Sequence[AddedPoint]) -> dict[Piece, str]:
    lr, decay = repr(settings.learning_rate), repr(settings.weight_decay)
    values = {
        "lr": lr,
        "decay": f", weight_decay={decay}" if settings.weight_decay else "",
        "always": f", weight_decay={decay}",
    }
    optimizer = "optimizer = " + OPTIMIZERS[settings.optimizer].format(**values)
    if settings.precision == "float16":
        optimizer += '\nscaler = torch.amp.GradScaler("cpu", init_scale=1024.0)'
    return {
        Piece.SETUP: _setup(settings),
        Piece.DATA: datasets.source_code(settings.dataset, settings.samples, settings.noise, added),
        Piece.LOADERS: _loaders(),
        Piece.MODEL: network(settings),
        Piece.CRITERION: "criterion = nn.CrossEntropyLoss()",
        Piece.OPTIMIZER: optimizer,
        Piece.SCHEDULER: _scheduler(settings),
        Piece.EVALUATION: _evaluation(settings),
        Piece.RECORDS: "losses, evaluations = [], []"
        + ("\nbest, best_model = -1.0, copy.deepcopy(model).eval()" if settings.keep_best else ""),
    }


def _setup(settings: Simulation) -> str:
    lines = [f"torch.manual_seed({settings.seed})"]
    if settings.precision == "float64":
        lines.append("torch.set_default_dtype(torch.float64)")
    lines += [f"epochs = {settings.epochs}", f"batch_size = {settings.batch}"]
    if settings.accumulation > 1:
        lines.append(f"window = {settings.accumulation}  # batches per update")
    return "\n".join(lines)


def _loaders() -> str:
    return "\n".join(
        [
            "train_set = TensorDataset(points[~held_out], labels[~held_out])",
            "held_out_set = TensorDataset(points[held_out], labels[held_out])",
            "train_loader = DataLoader(train_set, batch_size=batch_size, shuffle=True)",
            "held_out_loader = DataLoader(held_out_set, batch_size=batch_size)",
        ]
    )


def _scheduler(settings: Simulation) -> str:
    if settings.schedule == "constant":
        return ""
    per_epoch = "math.ceil(len(train_loader) / window)" if settings.accumulation > 1 else "len(train_loader)"
    lines = [f"total_updates = epochs * {per_epoch}"]
    if settings.schedule == "warmup":
        lines.append("warm_up = max(1, total_updates // 10)")
    cycled = ", cycle_momentum=False" if settings.optimizer == "adagrad" else ""  # it has no momentum
    lines.append(
        "scheduler = " + SCHEDULES[settings.schedule][1].format(lr=repr(settings.learning_rate), cycled=cycled)
    )
    return "\n".join(lines)


def _evaluation(settings: Simulation) -> str:
    text = EVALUATION.strip()
    if settings.no_grad:
        return text
    before_block, block_and_end = text.split("    with torch.no_grad():\n")
    body, after_block = block_and_end.split("    return")
    return before_block + "".join(line[4:] + "\n" for line in body.splitlines()) + "    return" + after_block


def _loop_pieces(settings: Simulation) -> dict[Piece, str]:
    is_float16 = settings.precision == "float16"
    forward = "outputs = model(inputs)"
    if settings.precision in ("bfloat16", "float16"):
        forward = f'with torch.autocast("cpu", dtype=torch.{settings.precision}):\n    outputs = model(inputs)'
    return {
        Piece.TRAIN_MODE: "model.train()",
        Piece.FORWARD: forward,
        Piece.LOSS: "loss = criterion(outputs, targets)",
        Piece.RECORD_LOSS: "losses.append(loss.item())",
        Piece.DIVIDE_LOSS: SHARE.strip() if settings.accumulation > 1 else "",
        Piece.BACKWARD: "scaler.scale(loss).backward()" if is_float16 else "loss.backward()",
        Piece.UNSCALE: "scaler.unscale_(optimizer)" if is_float16 and settings.clip else "",
        Piece.CLIP: f"norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm={settings.clip!r})"
        if settings.clip
        else "",
        Piece.OPTIMIZER_STEP: "scaler.step(optimizer)\nscaler.update()" if is_float16 else "optimizer.step()",
        Piece.SCHEDULER_STEP: "" if settings.schedule == "constant" else "scheduler.step()",
        Piece.ZERO_GRAD: "optimizer.zero_grad()",
        Piece.EVALUATE: EVALUATE.strip(),
        Piece.KEEP_BEST: KEEP_BEST.strip() if settings.keep_best else "",
    }
