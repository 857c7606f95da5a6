"""Write the report of a run: one HTML file without network access or scripts, for screen, phone and paper."""

from pathlib import Path
from time import localtime, strftime

from trueloop.core.formatting import format_count, format_duration, format_float, format_number
from trueloop.core.html import Markup, element
from trueloop.runs.atomic_file import write_atomically
from trueloop.runs.confusion import confusion_section
from trueloop.runs.history import History
from trueloop.runs.html_page import curves_section, render_page
from trueloop.runs.journal import JOURNAL_NAME, read_journal
from trueloop.runs.panels import build_panels
from trueloop.runs.report_sections import (
    checkpoints_section,
    environment_section,
    evaluations_section,
    findings_section,
    notes_section,
    settings_section,
    time_section,
)

REPORT_NAME = "report.html"

OUTCOMES = {
    "finished": ("good", "Finished"),
    "early_stop": ("good", "Stopped early"),
    "interrupted": ("warn", "Interrupted"),
    "preempted": ("warn", "Preempted"),
    "failed": ("bad", "Failed"),
}


def write_report(run_dir: Path, history: History | None = None) -> Path:
    """Write RUN/report.html from the journal; the file is replaced atomically.

    Args:
        run_dir: the run folder, with its journal.
        history: the result of `read_journal`, if it was read already.

    Returns:
        The path of the report.

    Raises:
        RunFolderError: there is no journal, or the report cannot be written.
        InvalidData: the journal is damaged.
        MissingExtra: matplotlib is not installed.
    """
    path = run_dir / REPORT_NAME
    page = render_report(history or read_journal(run_dir), run_dir)
    write_atomically(path, page.encode(), "The report")
    return path


def render_report(history: History, run_dir: Path) -> str:
    """Render the page of a run; ``run_dir`` is searched for the checkpoints that still exist."""
    parts = [
        _header(history),
        _metric_cards(history),
        findings_section(history),
        curves_section(build_panels(history)) if len(history.updates) else Markup(),
        confusion_section(history),
        evaluations_section(history),
        time_section(history),
        checkpoints_section(history, run_dir),
        notes_section(history),
        settings_section(history),
        environment_section(history),
        element("footer", f"Written by trueloop from {JOURNAL_NAME}, which contains every number shown here."),
    ]
    return render_page(f"{history.started.name}: trueloop run", parts)


def describe_outcome(history: History) -> tuple[str, str, str]:
    """Return how the run ended: a tone ("good", "warn", "bad"), a short title, and a sentence."""
    end = history.end
    epochs = history.updates.epoch[-1] if len(history.updates) else 0
    progress = f"{format_count(epochs, 'epoch')}, {format_count(history.last_update, 'update')}"
    if end is None:
        return "warn", "No end recorded", f"Still running, or killed after {progress}; the same command resumes it."
    tone, title = OUTCOMES.get(end.reason, ("warn", end.reason))
    seconds = end.seconds if history.processes == 1 else history.time_split().total
    resumed = f", in {format_count(history.processes, 'process')}" if history.processes > 1 else ""
    return tone, title, f"{progress} in {format_duration(seconds)}{resumed}."


def _header(history: History) -> Markup:
    tone, title, sentence = describe_outcome(history)
    started = strftime("%Y-%m-%d %H:%M", localtime(history.started_at))
    return element(
        "header",
        element("p", f"trueloop run, started {started}", class_="kicker"),
        element("h1", history.started.name),
        element("p", element("span", title, class_=f"pill {tone}"), " ", sentence, class_="verdict"),
    )


def _metric_cards(history: History) -> Markup:
    entries: list[tuple[str, str, str]] = []
    test, best = history.latest("test"), history.best or history.latest("val")
    if test:
        for name, value in test.metrics.items():
            entries.append((f"test {name}", format_float(value, 4), "with the final weights"))
    if best:
        detail = f"{'best' if best.best else 'newest'}: epoch {best.epoch}, update {best.update}"
        entries += [(f"{best.split} {name}", format_float(value, 4), detail) for name, value in best.metrics.items()]
    training_s = sum(history.updates.total_s)
    if training_s > 0:
        entries.append(("speed", f"{sum(history.updates.examples) / training_s:,.0f}", "examples per second"))
    if history.skipped:
        entries.append(("skipped updates", format_number(len(history.skipped)), "loss or gradient not finite"))
    if history.end and history.end.peak_memory_mib is not None:
        peak = f"{history.end.peak_memory_mib:,.0f} MiB"
        entries.append(("peak memory", peak, "on the GPU, or in RAM without a GPU"))
    if isinstance(parameters := history.facts.get("parameters"), int):
        entries.append(("parameters", f"{parameters:,}", "trainable"))
    cards = (
        element("div", element("dt", name), element("dd", value), element("dd", detail, class_="unit"))
        for name, value, detail in entries
    )
    return element("dl", *cards, class_="cards")
