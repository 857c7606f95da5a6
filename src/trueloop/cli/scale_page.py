"""Prints the page of `trueloop plan --parameters`: memory, traffic, time and disk space, with their formulas."""
# ruff: noqa: RUF001  # × is meant

from collections.abc import Iterator

from rich.console import Console
from rich.table import Column, Table

from trueloop.app.planning.scale import FLOAT32, JOURNAL_BYTES, MOMENTS, Scale
from trueloop.core.formatting import format_duration, format_float, format_number, format_size


def print_scale(made: Scale, console: Console) -> None:
    """Print the page, no wider than the console."""
    wide = console.width >= 60
    for title, columns, rows in (
        ("", ("", ""), _input_rows(made)),
        ("memory of a device", ("replicated", "sharded"), _memory(made)),
        ("per update", ("replicated", "sharded"), _update(made)),
        ("disk", ("replicated", "sharded"), _disk(made)),
    ):
        first = Column(title, header_style="bold", no_wrap=wide)
        values = [Column(name, justify="right", style="bold", header_style="", overflow="fold") for name in columns]
        formula = [Column("", style="dim", overflow="fold")] if wide else []
        table = Table(first, *values, *formula, box=None, padding=(0, 2, 0, 0), show_header=bool(title))
        for row in rows:
            table.add_row(*row[: len(table.columns)])
        console.print(table, "")


Row = tuple[str, str, str, str]


def _input_rows(made: Scale) -> Iterator[Row]:
    yield "parameters", _si(made.parameters), "", f"{made.layers} blocks of {made.width}, {made.optimizer}"
    yield (
        "devices",
        format_number(made.devices),
        "",
        f"micro-batch {made.micro_batch} × {made.sequence} tokens, {_micro_batches(made)}",
    )
    yield "precision", made.precision, "", f"{made.compute_bytes} bytes per number in computation, {FLOAT32} in storage"


def _micro_batches(made: Scale) -> str:
    return f"{made.accumulate} per update" if made.accumulate > 1 else "one per update"


def _memory(made: Scale) -> Iterator[Row]:
    n, p, c = _si(made.parameters), made.devices, made.compute_bytes
    yield (
        "parameters",
        format_size(made.parameter_bytes),
        format_size(made.parameter_bytes // p),
        f"{FLOAT32} × {n}, / {p}",
    )
    sharding = ", not sharded until the update" if made.accumulate > 1 else f", / {p}"
    yield (
        "gradients",
        format_size(made.gradient_bytes),
        format_size(made.sharded_gradient_bytes),
        f"{FLOAT32} × {n}{sharding}",
    )
    moments = FLOAT32 * MOMENTS[made.optimizer]
    yield "moments", format_size(made.moment_bytes), format_size(made.moment_bytes // p), f"{moments} × {n}, / {p}"
    if made.copy_bytes:
        copies = format_size(made.copy_bytes)
        yield f"copies in {made.precision}", copies, copies, f"{c} × {n}, made by autocast, not sharded"
    yield "gathered", "0 bytes", format_size(made.gathered_bytes), "two blocks, embedding, head; one block's gradients"
    size = format_size(made.activation_bytes)
    yield "activations", size, size, f"L s b h ({2 * FLOAT32} + {14 * c}) + s b ({FLOAT32 + c} h + 4 v)"
    yield "total", format_size(made.replicated_bytes), format_size(made.sharded_bytes), ""
    size = format_size(made.recomputed_activation_bytes)
    yield "  activations recomputed", size, size, f"L s b h {FLOAT32} + one block + head"
    yield (
        "  total",
        format_size(made.replicated_recomputed_bytes),
        format_size(made.sharded_recomputed_bytes),
        "a third more computation",
    )


def _update(made: Scale) -> Iterator[Row]:
    sent, sharded = made.replicated_traffic_bytes, made.sharded_traffic_bytes
    formula = f"2 (P-1)/P × 4 N; (P-1)/P × ({2 * made.accumulate} × 4 N + 4 N)"
    yield "sent by a device", format_size(sent), format_size(sharded), formula
    times = format_duration(made.replicated_traffic_s), format_duration(made.sharded_traffic_s)
    yield "  at the bandwidth", *times, f"{made.bandwidth_gb_s:g} GB/s, not overlapped"
    yield (
        "tokens",
        _si(made.tokens_per_update),
        "",
        f"{made.devices} × {made.accumulate} × {made.micro_batch} × {made.sequence}",
    )
    yield "operations", f"{format_float(made.flop_per_update)}", "", "(6 N + 12 L h s) per token"
    peak = f"{made.peak_tflops:g} TFLOP/s × {made.utilisation:g} on {format_number(made.devices)}"
    yield "computation", format_duration(made.compute_s), "", peak
    yield "  recomputed", format_duration(made.recomputed_compute_s), "", "× 4/3"
    fastest = format_duration(made.replicated_update_s), format_duration(made.sharded_update_s)
    yield "fastest update", *fastest, "the longer of traffic and computation, fully overlapped"
    if made.updates is not None and made.replicated_run_s is not None and made.sharded_run_s is not None:
        yield "updates of the run", format_number(made.updates), "", f"{_si(made.tokens or 0)} tokens"
        yield "fastest run", format_duration(made.replicated_run_s), format_duration(made.sharded_run_s), ""


def _disk(made: Scale) -> Iterator[Row]:
    size = format_size(made.checkpoint_bytes)
    moments = FLOAT32 * MOMENTS[made.optimizer]
    yield "checkpoint", size, size, f"({FLOAT32} + {moments}) × {_si(made.parameters)}"
    yield (
        "  written in",
        format_duration(made.checkpoint_s),
        format_duration(made.sharded_checkpoint_s),
        f"{made.storage_gb_s:g} GB/s each",
    )
    if made.order_list_bytes is not None and made.journal_bytes is not None:
        yield (
            "order of the data",
            "0 bytes",
            "0 bytes",
            f"a shuffled list would be {format_size(made.order_list_bytes)}",
        )
        yield "journal", format_size(made.journal_bytes), "", f"{JOURNAL_BYTES} bytes per update of 100 ms"


def _si(count: int) -> str:
    """Format a count as in papers: "7 B", "350 M", "4096"."""
    for unit, name in ((10**12, "T"), (10**9, "B"), (10**6, "M")):
        if count >= unit:
            return f"{float(f'{count / unit:.4g}'):g} {name}"
    return format_number(count)
