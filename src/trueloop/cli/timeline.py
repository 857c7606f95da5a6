"""Draw a run as text: one row per epoch, windows in brackets, one mark per iteration."""
# ruff: noqa: RUF001  # the signs × and – are intended

from collections.abc import Iterator

from rich.text import Text

from trueloop.core.arithmetic import Plan
from trueloop.core.formatting import format_count, format_number

FULL, PARTIAL, MISSING, LEFT_OUT, MORE = "█", "▄", "·", "×", "⋯"
STYLES = {FULL: "cyan", PARTIAL: "yellow", MISSING: "yellow", LEFT_OUT: "red", "(": "bold yellow", ")": "bold yellow"}
MAX_WINDOW = 8  # maximum number of iterations that are all drawn; the middle of a longer window is left out
MAX_EPOCHS = 4  # maximum number of rows, which is enough to see that all epochs are the same


def timeline(plan: Plan, width: int) -> Iterator[Text]:
    """Draw one row per epoch in `width` columns; the middle of a row that does not fit is left out."""
    hidden = max(0, plan.epochs - MAX_EPOCHS)
    epochs = [*range(1, MAX_EPOCHS), plan.epochs] if hidden else [*range(1, plan.epochs + 1)]
    indent = len(f"epoch {format_number(plan.epochs)}  ")
    spans = [_span(plan, epoch) for epoch in epochs]
    windows = _windows(plan, width - indent - len(spans[-1]))
    if indent + len(windows) + len(spans[-1]) > width:  # the windows are more important than the update numbers
        windows, spans = _windows(plan, width - indent), [""] * len(spans)
    rows = [
        Text(f"{f'epoch {format_number(epoch)}':<{indent}}").append_text(colour_marks(windows)).append(span, "dim")
        for epoch, span in zip(epochs, spans, strict=True)
    ]
    if hidden:
        rows.insert(-1, Text(f"{MORE:<{indent}}{format_count(hidden, 'more epoch')}, all the same", "dim"))
    for row in rows:
        row.truncate(width, overflow="ellipsis")
        yield row


def colour_marks(marks: str) -> Text:
    """Colour each mark; the marks also differ in shape."""
    return Text.assemble(*((mark, STYLES.get(mark, "dim")) for mark in marks))


def _span(plan: Plan, epoch: int) -> str:
    last = epoch * plan.updates_per_epoch
    first = last - plan.updates_per_epoch + 1
    only_one = first == last
    return f"  update {format_number(last)}" if only_one else f"  updates {format_number(first)}–{format_number(last)}"


def _windows(plan: Plan, width: int) -> str:
    """Draw one epoch: every window if they fit in `width` columns, else the first ones and the last two."""
    window, last = full_window(plan), last_window(plan) + LEFT_OUT * (plan.never_seen_per_epoch > 0)
    full = plan.updates_per_epoch - 1
    gap = len(f" {MORE} {format_number(full)} more {MORE} ")
    first = max(1, (width - gap - len(window) - len(last)) // len(window))
    if full * len(window) + len(last) <= width or full < first + 2:
        return window * full + last
    return f"{window * first} {MORE} {format_number(full - first - 1)} more {MORE} {window}{last}"


def full_window(plan: Plan) -> str:
    """Draw a window with all its micro-batches."""
    return _window(plan, plan.accumulate, partial=0)


def last_window(plan: Plan) -> str:
    """Draw the last window of an epoch, in round brackets if it is short."""
    return _window(plan, plan.last_window, partial=int(plan.partial_last_batch))


def _window(plan: Plan, size: int, *, partial: int) -> str:
    runs = ((FULL, size - partial), (PARTIAL, partial), (MISSING, plan.accumulate - size))
    shorten = plan.accumulate > MAX_WINDOW
    marks = "".join(mark + MORE + mark if shorten and count > 3 else mark * count for mark, count in runs)
    return f"[{marks}]" if size == plan.accumulate else f"({marks})"
