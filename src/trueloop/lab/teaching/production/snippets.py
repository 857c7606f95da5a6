"""Snippets of the production program above its training loop, in their order.

Each snippet generates its lines for one selection, or "", so that 2^10 programs need not be written out. The snippets
of the training loop are in `program.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from textwrap import dedent, indent
from typing import Final

from trueloop.lab.teaching.production.selection import Selection


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippet:
    """One part of the program."""

    name: str
    """Unique name; boxes of the chart and benchmarks refer to it."""
    write: Callable[[Selection], str]
    """Selection -> lines without the indentation of `depth`; "" if the selection does not need the snippet."""
    depth: int = 0
    """Loop depth: 1 in the loop over epochs, 2 in the loop over batches."""
    spaced: bool = False
    """True if a blank line precedes the snippet."""


def constant(text: str, when: Callable[[Selection], bool] = lambda chosen: True) -> Callable[[Selection], str]:
    """Return a `Snippet.write` that returns fixed lines for the selections for which ``when`` is true."""
    lines = dedent(text).strip("\n")
    return lambda chosen: lines if when(chosen) else ""


def lines(*each: str) -> str:
    """Join the lines that are not empty."""
    return "\n".join(line for line in each if line)


def _settings(chosen: Selection) -> str:
    return lines(
        "EPOCHS = 10",
        "BATCH = 64  # examples per update",
        "ACCUMULATE = 4  # micro-batches per update" if chosen.accumulation else "",
        "PATIENCE = 3  # epochs without improvement before the run ends" if chosen.early_stopping else "",
        'CHECKPOINT = Path("checkpoint.pt")' if chosen.checkpoint else "",
        'LOG = Path("log.jsonl")' if chosen.logging else "",
    )


def _loaders(chosen: Selection) -> str:
    size = "BATCH // ACCUMULATE" if chosen.accumulation else "BATCH"
    return lines(
        f"loader = DataLoader(train_data, batch_size={size}, shuffle=True)",
        "val_loader = DataLoader(val_data, batch_size=256)" if chosen.evaluation else "",
    )


def _split(chosen: Selection) -> str:
    if not chosen.evaluation:
        return "train_data = TensorDataset(images, labels)"
    return dedent("""\
        dataset = TensorDataset(images, labels)
        split = torch.Generator().manual_seed(0)  # its own seed: the same split in every run
        train_data, val_data = random_split(dataset, [0.8, 0.2], generator=split)""")


def _criterion(chosen: Selection) -> str:
    return (
        'loss_function = nn.CrossEntropyLoss(reduction="sum")'
        if chosen.sums_losses
        else "loss_function = nn.CrossEntropyLoss()"
    )


def _schedule(chosen: Selection) -> str:
    if not chosen.schedule:
        return ""
    windows = "math.ceil(len(loader) / ACCUMULATE)" if chosen.accumulation else "len(loader)"
    return lines(
        f"updates = EPOCHS * {windows}",
        "schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=updates)",
    )


def _scaler(chosen: Selection) -> str:
    if not chosen.uses_scaler:
        return ""
    if chosen.sums_losses:
        return "scaler = torch.amp.GradScaler(device, init_scale=2.0**10)  # sums are larger than means"
    return "scaler = torch.amp.GradScaler(device)"


def autocast(chosen: Selection) -> str:
    """Return the line that opens autocast; "" for full precision."""
    kind = {"off": "", "bf16": "bfloat16", "fp16": "float16"}[chosen.precision]
    return kind and f"with torch.autocast(device, dtype=torch.{kind}):"


def _evaluate(chosen: Selection) -> str:
    if not chosen.evaluation:
        return ""
    forward = lines("scores = model(inputs)", 'loss = nn.functional.cross_entropy(scores, targets, reduction="sum")')
    if cast := autocast(chosen):
        forward = f"{cast}\n{indent(forward, '    ')}"
    return EVALUATE.format(forward=indent(forward, " " * 8)).strip("\n")


EVALUATE = '''
@torch.inference_mode()
def evaluate():
    """Return the mean loss and the accuracy on the held-out data."""
    model.eval()
    loss_sum = right = count = 0
    for inputs, targets in val_loader:
        inputs, targets = inputs.to(device), targets.to(device)
{forward}
        loss_sum += loss.item()
        right += (scores.argmax(1) == targets).sum().item()
        count += len(targets)
    model.train()
    return loss_sum / count, right / count
'''
SAVE = '''
def save(state):
    """Write a temporary file and rename it: a crash keeps the last checkpoint."""
    temporary = CHECKPOINT.with_suffix(".tmp")
    with temporary.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(CHECKPOINT)
'''


def _resume(chosen: Selection) -> str:
    if not chosen.checkpoint:
        return ""
    return lines(
        "start = 0",
        "if CHECKPOINT.exists():",
        '    saved = torch.load(CHECKPOINT, map_location="cpu", weights_only=True)',
        '    start = saved["epoch"]',
        '    model.load_state_dict(saved["model"])',
        '    optimizer.load_state_dict(saved["optimizer"])',
        '    schedule.load_state_dict(saved["schedule"])' if chosen.schedule else "",
        '    scaler.load_state_dict(saved["scaler"])' if chosen.uses_scaler else "",
        '    best, best_weights, stale = saved["best"], saved["best_weights"], saved["stale"]'
        if chosen.early_stopping
        else "",
        '    torch.set_rng_state(saved["random"])' if chosen.seeding else "",
        '    torch.cuda.set_rng_state_all(saved["random_cuda"])' if chosen.seeding else "",
    )


DATA = """
digits = load_digits()
images = torch.tensor(digits.data / 16, dtype=torch.float32)
labels = torch.tensor(digits.target)
"""
MODEL = """
model = nn.Sequential(
    nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10)
).to(device)
"""

SETUP_SNIPPETS: Final = (
    Snippet(name="settings", write=_settings),
    Snippet(name="device", write=constant('device = "cuda" if torch.cuda.is_available() else "cpu"'), spaced=True),
    Snippet(
        name="seed",
        write=constant(
            "torch.manual_seed(0)  # weights, order and dropout, on every device", lambda chosen: chosen.seeding
        ),
    ),
    Snippet(name="data", write=constant(DATA), spaced=True),
    Snippet(name="split", write=_split),
    Snippet(name="loaders", write=_loaders),
    Snippet(name="model", write=constant(MODEL), spaced=True),
    Snippet(name="criterion", write=_criterion),
    Snippet(name="optimizer", write=constant("optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)")),
    Snippet(name="schedule", write=_schedule),
    Snippet(name="scaler", write=_scaler),
    Snippet(
        name="best",
        write=constant(
            'best, best_weights, stale = float("inf"), copy.deepcopy(model.state_dict()), 0',
            lambda chosen: chosen.early_stopping,
        ),
    ),
    Snippet(name="evaluate", write=_evaluate, spaced=True),
    Snippet(name="save", write=constant(SAVE, lambda chosen: chosen.checkpoint), spaced=True),
    Snippet(name="resume", write=_resume, spaced=True),
)
"""The snippets above the training loop."""
