"""Print the result of `trueloop plan --parameters`: memory, traffic, time and disk space, with their formulas."""
# ruff: noqa: RUF001  # the sign × is intended

from collections.abc import Iterator

from rich.console import Console
from rich.table import Column, Table

from trueloop.app.planning.scale import FLOAT32, JOURNAL_BYTES, MOMENTS, Scale
from trueloop.core.formatting import format_duration, format_float, format_number, format_size


def print_scale(sizes: Scale, console: Console) -> None:
    """Print the tables, no wider than the console."""
    wide = console.width >= 60  # in columns; a narrower console shows no formulas
    for title, columns, rows in (
        ("", ("", ""), _input_rows(sizes)),
        ("memory of a device", ("replicated", "sharded"), _memory_rows(sizes)),
        ("per update", ("replicated", "sharded"), _update_rows(sizes)),
        ("disk", ("replicated", "sharded"), _disk_rows(sizes)),
    ):
        first = Column(title, header_style="bold", no_wrap=wide)
        values = [Column(name, justify="right", style="bold", header_style="", overflow="fold") for name in columns]
        formula = [Column("", style="dim", overflow="fold")] if wide else []
        table = Table(first, *values, *formula, box=None, padding=(0, 2, 0, 0), show_header=bool(title))
        for row in rows:
            table.add_row(*row[: len(table.columns)])
        console.print(table, "")


Row = tuple[str, str, str, str]


def _input_rows(sizes: Scale) -> Iterator[Row]:
    yield "parameters", _si(sizes.parameters), "", f"{sizes.layers} blocks of {sizes.width}, {sizes.optimizer}"
    per_update = f"{sizes.accumulate if sizes.accumulate > 1 else 'one'} per update"
    micro_batches = f"micro-batch {sizes.micro_batch} × {sizes.sequence} tokens, {per_update}"
    yield "devices", format_number(sizes.devices), "", micro_batches
    number_sizes = f"{sizes.compute_bytes} bytes per number in computation, {FLOAT32} in storage"
    yield "precision", sizes.precision, "", number_sizes


def _memory_rows(sizes: Scale) -> Iterator[Row]:
    n, p, c = _si(sizes.parameters), sizes.devices, sizes.compute_bytes
    size, sharded = format_size(sizes.parameter_bytes), format_size(sizes.parameter_bytes // p)
    yield "parameters", size, sharded, f"{FLOAT32} × {n}, / {p}"
    sharding = ", not sharded until the update" if sizes.accumulate > 1 else f", / {p}"
    size, sharded = format_size(sizes.gradient_bytes), format_size(sizes.sharded_gradient_bytes)
    yield "gradients", size, sharded, f"{FLOAT32} × {n}{sharding}"
    moments = FLOAT32 * MOMENTS[sizes.optimizer]
    yield "moments", format_size(sizes.moment_bytes), format_size(sizes.moment_bytes // p), f"{moments} × {n}, / {p}"
    if sizes.copy_bytes:
        copies = format_size(sizes.copy_bytes)
        yield f"copies in {sizes.precision}", copies, copies, f"{c} × {n}, made by autocast, not sharded"
    yield "gathered", "0 bytes", format_size(sizes.gathered_bytes), "two blocks, embedding, head; one block's gradients"
    size = format_size(sizes.activation_bytes)
    yield "activations", size, size, f"L s b h ({2 * FLOAT32} + {14 * c}) + s b ({FLOAT32 + c} h + 4 v)"
    yield "total", format_size(sizes.replicated_bytes), format_size(sizes.sharded_bytes), ""
    size = format_size(sizes.recomputed_activation_bytes)
    yield "  activations recomputed", size, size, f"L s b h {FLOAT32} + one block + head"
    size, sharded = format_size(sizes.replicated_recomputed_bytes), format_size(sizes.sharded_recomputed_bytes)
    yield "  total", size, sharded, "a third more computation"


def _update_rows(sizes: Scale) -> Iterator[Row]:
    sent, sharded = sizes.replicated_traffic_bytes, sizes.sharded_traffic_bytes
    formula = f"2 (P-1)/P × 4 N; (P-1)/P × ({2 * sizes.accumulate} × 4 N + 4 N)"
    yield "sent by a device", format_size(sent), format_size(sharded), formula
    times = format_duration(sizes.replicated_traffic_s), format_duration(sizes.sharded_traffic_s)
    yield "  at the bandwidth", *times, f"{sizes.bandwidth_gb_s:g} GB/s, not overlapped"
    factors = f"{sizes.devices} × {sizes.accumulate} × {sizes.micro_batch} × {sizes.sequence}"
    yield "tokens", _si(sizes.tokens_per_update), "", factors
    yield "operations", f"{format_float(sizes.flop_per_update)}", "", "(6 N + 12 L h s) per token"
    peak = f"{sizes.peak_tflops:g} TFLOP/s × {sizes.utilisation:g} on {format_number(sizes.devices)}"
    yield "computation", format_duration(sizes.compute_s), "", peak
    yield "  recomputed", format_duration(sizes.recomputed_compute_s), "", "× 4/3"
    fastest = format_duration(sizes.replicated_update_s), format_duration(sizes.sharded_update_s)
    yield "fastest update", *fastest, "the longer of traffic and computation, fully overlapped"
    if sizes.updates is not None and sizes.replicated_run_s is not None and sizes.sharded_run_s is not None:
        yield "updates of the run", format_number(sizes.updates), "", f"{_si(sizes.tokens or 0)} tokens"
        yield "fastest run", format_duration(sizes.replicated_run_s), format_duration(sizes.sharded_run_s), ""


def _disk_rows(sizes: Scale) -> Iterator[Row]:
    size = format_size(sizes.checkpoint_bytes)
    moments = FLOAT32 * MOMENTS[sizes.optimizer]
    yield "checkpoint", size, size, f"({FLOAT32} + {moments}) × {_si(sizes.parameters)}"
    times = format_duration(sizes.checkpoint_s), format_duration(sizes.sharded_checkpoint_s)
    yield "  written in", *times, f"{sizes.storage_gb_s:g} GB/s each"
    if sizes.order_list_bytes is not None and sizes.journal_bytes is not None:
        list_size = format_size(sizes.order_list_bytes)
        yield "order of the data", "0 bytes", "0 bytes", f"a shuffled list would take {list_size}"
        yield "journal", format_size(sizes.journal_bytes), "", f"{JOURNAL_BYTES} bytes per update of 100 ms"


def _si(count: int) -> str:
    """Format a count as in papers: "7 B", "350 M", "4096"."""
    for unit, name in ((10**12, "T"), (10**9, "B"), (10**6, "M")):
        if count >= unit:
            return f"{float(f'{count / unit:.4g}'):g} {name}"
    return format_number(count)
