"""Write the figures of benchmarks/results into docs/benchmarks.md, docs/in-the-wild.md and README.md.

So that none is typed by hand.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "benchmarks" / "results", ROOT / "docs" / "benchmarks.md"
README, PUBLIC_CODE = ROOT / "README.md", ROOT / "docs" / "in-the-wild.md"
JUDGED = ROOT / "benchmarks" / "wild_judged.json"
BEGIN, END = "<!-- figures: begin (written by benchmarks/page.py) -->\n", "<!-- figures: end -->\n"


def result(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def table(head: list[str], rows: list[list[str]]) -> str:
    first, *others = ("| " + " | ".join(line) + " |\n" for line in (head, *rows))
    return "".join([first, "|---" * len(head) + "|\n", *others])


def share(value: float) -> str:
    return "0" if value < 1e-12 else f"{100 * value:.0f} %"


def accumulation() -> str:
    by_system = result("accumulation")["deviation"]["SGD"]
    cases = list(by_system["trueloop"])
    rows = [[name, *(share(measured[case]["of_movement"]) for case in cases)] for name, measured in by_system.items()]
    return (
        "Deviation of the weights' trajectory from that of one big batch, relative to the movement of the weights; "
        "SGD, float64, 0 means below 1e-12 (`accumulation.py`):\n\n" + table(["system", *cases], rows)
    )


def overhead() -> str:
    tasks_found = result("overhead")["found"]
    tasks = {"mlp": "MLP 32-64-10", "gpt": "small GPT", "cnn": "small CNN"}
    references = ["bare five lines, default AdamW", "by hand, default AdamW", "by hand, fused AdamW"]
    rows = [
        [tasks[task], name, *(ratio(measured["wall_ratio_to"][reference]) for reference in references)]
        for task in tasks
        for name, measured in tasks_found[task].items()
        if name not in references
    ]
    defaults = tasks_found["textbook"]["trueloop, its default settings"]["wall_ratio_to"]["textbook loop"]
    return (
        "Time per update with clipping, a schedule and a recorded norm, none of which the bare loop does: ratio within "
        "a round, median and middle 80 % (`overhead.py`):\n\n"
        + table(["task", "system", *(f"/ {reference}" for reference in references)], rows)
        + f"\nThe defaults of `trueloop train` take {ratio(defaults)} of the textbook loop's time on the small CNN.\n"
    )


def fast() -> str:
    """Return the times of whole runs and of compiled updates."""
    found = result("speed")["found"]
    tasks = {"mlp": "MLP 32-64-10", "gpt": "small GPT", "cnn": "digits CNN"}
    textbooks = ("textbook, mixed precision", "textbook, float32")
    runs = [
        [tasks[task], name, *(ratio(measured["wall_ratio_to"][each]) for each in textbooks)]
        for task, systems in found["whole runs"].items()
        for name, measured in systems.items()
        if name not in textbooks
    ]
    loops, by_hand = found["loops"], "production loop by hand, fused"
    updates = [
        [
            label(name),
            *(ratio(loops[task][name]["wall_ratio_to"][by_hand]) if name != by_hand else "1" for task in tasks),
        ]
        for name in loops["mlp"]
    ]
    return (
        "Time per update of whole runs on shuffled batches of a dataset, relative to the loops of PyTorch's tutorials "
        "and of nanoGPT, with and without mixed precision (`speed.py`):\n\n"
        + table(["task", "system", *(f"/ {each}" for each in textbooks)], runs)
        + "\nTime per update on prepared batches after compilation, relative to the production loop by hand; the raw "
        "loop does not clip, schedule or record (`speed.py`):\n\n" + table(["system", *tasks.values()], updates)
    )


def processes() -> str:
    """Return the times per update on two processes."""
    data = result("processes")
    engines = {"ddp": "DistributedDataParallel", "fsdp": "fully_shard"}
    tasks = {"mlp": "MLP 32-64-10", "gpt": "small GPT", "cnn": "small CNN"}
    references = ("bare five lines", "by hand: clipped, scheduled, recorded")
    systems = (*references, "trueloop")
    rows = [
        [
            tasks[name.split()[0]],
            engines[name.split()[1]],
            f"{measured[references[0]]['seconds_per_update']['median'] * 1e3:.1f}",
            *(ratio(measured["trueloop"]["wall_ratio_to"][each]) for each in references),
            ratio(measured["trueloop"]["cpu_ratio_to"][references[1]]),
            " / ".join(f"{measured[system]['messages_per_update']:g}" for system in systems),
        ]
        for name, measured in data["found"].items()
    ]
    columns = [
        "task", "engine", "ms, bare", *(f"trueloop / {each}" for each in references), "/ by hand, CPU time",
        "messages per update, bare / by hand / trueloop",
    ]  # fmt: skip
    return (
        f"Time per update of {data['settings']['processes']} processes on gloo, relative to loops over the same "
        "PyTorch engine; the bare one does not clip, schedule or record (`processes.py`; load average "
        f"{data['machine']['load_average']:.0f} on {data['machine']['cores']} cores):\n\n"
        + table(columns, rows)
        + f"\nA message of four numbers took {data['small_message_s']['median'] * 1e6:.0f} µs: on small models, most "
        "of an update is communication. With DistributedDataParallel, trueloop sends only the gradients: sums, counts, "
        "the stop flag and the buffers of batch normalisation, which DDP sends separately, are part of that message. "
        "With fully_shard the gradient norm is sharded, and all ranks need it before any of them steps, to clip or to "
        "skip a non-finite window: one message more than the bare loop, which does neither.\n"
    )


def gpu() -> str:
    """Return the speed and memory of a large model on a CUDA device."""
    measured = result("gpu")
    found, loop = measured["found"], "nanoGPT-style loop"
    rows = [
        [
            name,
            f"{1 / system['seconds_per_update']['median']:.2f}",
            ratio(system["ratio_to"][loop]),
            f"{100 * system['share_of_product_rate']:.0f} %",
            f"{system['peak_mib'] / 1024:.1f}",
        ]
        for name, system in found["training"].items()
    ]
    forward = ratio(found["forward only"]["inference_mode / no_grad"])
    return (
        f"A GPT-2-sized model in bf16 on {measured['settings']['device']} (`gpu.py`):\n\n"
        + table(["system", "updates/s", f"time / {loop}", "share of a matrix product's rate", "peak GiB"], rows)
        + f"\nForward passes under `inference_mode` take {forward} of the time under `no_grad`.\n"
    )


def ratio(measured: dict[str, float]) -> str:
    return spread(measured, 2)


def nonfinite() -> str:
    rows = [
        [name, f"{100 * entry['finite']:.0f} %", str(entry["exit"])]
        for name, entry in result("nonfinite")["found"].items()
    ]
    return "Weights that are finite after one batch with a NaN (`nonfinite.py`):\n\n" + table(
        ["system", "finite weights", "exit code"], rows
    )


def components() -> str:
    found = result("components")["components"]
    rows = [
        [name, str(sum(entry["lines"].values())), *(cell for task in ("mlp", "gpt") for cell in cost(entry.get(task)))]
        for name, entry in found.items()
        if name != "plain loop"
    ]
    head = ["component", "lines", "MLP: memory, MiB", "MLP: time", "GPT: memory, MiB", "GPT: time"]
    return (
        "Cost of each component of the loop: lines of code, additional peak memory of tensors, and CPU time per update "
        "relative to the plain loop (`components.py`):\n\n" + table(head, rows)
    )


def cost(entry: dict[str, Any] | None) -> list[str]:
    if entry is None:
        return ["", ""]
    return [f"{entry['extra_bytes'] / 2**20:+.2f}", ratio(entry["cpu_ratio"]) if "cpu_ratio" in entry else "1"]


def texts() -> str:
    """Return the cost of the programs on the lab's production page."""
    data = result("components")["texts"]
    minimal, *names = data["found"]["mlp"]
    tasks = data["found"].values()
    rows = [[name, *(cell for task in tasks for cell in text_costs(task[name], task[minimal]))] for name in names]
    head = [f"{task}: {what}" for task in ("MLP", "small CNN") for what in ("time", "memory, KiB", "disk, KiB")]
    gap = max(clock_gap(entry, "wall_ratio", "cpu_ratio") for task in tasks for entry in task.values())
    facts, examples = data["machine"], data["settings"]["examples"]
    return (
        "Programs in bare PyTorch on the lab's page about the production loop: time per update relative to the minimal "
        "loop, additional peak memory of tensors, and files after the run; epochs have "
        f"{examples:,} examples, and ratios of CPU time differ by at most {gap:.2f} (`components.py`; "
        f"on {facts['cpu']}, torch {facts['versions']['torch']}):\n\n" + table(["component", *head], rows)
    )


def text_costs(entry: dict[str, Any], minimal: dict[str, Any]) -> list[str]:
    extra_bytes = entry["memory_bytes"] - minimal["memory_bytes"]
    return [ratio(entry["wall_ratio"]), f"{extra_bytes / 1024:+.0f}", f"{entry['disk_bytes'] / 1024:.1f}"]


def clock_gap(measured: dict[str, Any], first: str, second: str) -> float:
    """Return the difference between two median ratios."""
    return abs(measured[first]["median"] - measured[second]["median"])


def order() -> str:
    found = result("order")
    return "\n".join([speed(found), seeking(found), memory(found), seeding(found), skipping(found)])


def speed(found: dict[str, Any]) -> str:
    rows = [
        [name, spread(entry["million_per_s"], 1), ratio(entry["cpu_ratio_to_randperm"])]
        for name, entry in found["throughput"].items()
    ]
    return (
        f"Indices per second of one core for an epoch of {found['settings']['samples']:,} samples, unless another size "
        "is named (`order.py`):\n\n" + table(["system", "million indices per s", "time / torch.randperm"], rows)
    )


def seeking(found: dict[str, Any]) -> str:
    rows = [
        [name, str(entry["times"]), *(f"{1e3 * entry['wall'][which]:.2f}" for which in ("median", "worst"))]
        for name, entry in found["seek_s"].items()
    ]
    return (
        "Wall time in ms to the first batch at a position of a new epoch; the worst cases include waiting for other "
        "processes of the machine (`order.py`):\n\n" + table(["system", "tries", "median", "worst"], rows)
    )


def memory(found: dict[str, Any]) -> str:
    sizes = list(found["memory_bytes"]["trueloop"])[1::2]
    rows = [
        [name, *("" if entry[size] is None else f"{entry[size] / 2**20:.1f}" for size in sizes)]
        for name, entry in found["memory_bytes"].items()
    ]
    return (
        "Growth of peak memory in MiB over a thousand batches in the middle of an epoch of N samples; empty cells were "
        "not measured (`order.py`):\n\n" + table(["system", *sizes], rows)
    )


def seeding(found: dict[str, Any]) -> str:
    rows = [
        [name, f"{entry['off']:.2f}", f"{entry['on']:.2f}", spread(entry["difference"], 2)]
        for name, entry in found["seeding_us"].items()
    ]
    return (
        "Random augmentation seeded per sample: microseconds per sample without and with it (`order.py`):\n\n"
        + table(["data", "without", "with", "difference"], rows)
    )


def skipping(found: dict[str, Any]) -> str:
    names = ("samples before the position", "of these, read again", "shards before it", "of these, opened")
    rows: dict[tuple[str, ...], list[str]] = {}
    for name, by_workers in found["resume"].items():
        for workers, entry in by_workers.items():
            rows.setdefault((name, *map(str, entry.values())), []).append(workers.partition(" ")[0])
    cells = [[name, " or ".join(workers), *counts] for (name, *counts), workers in rows.items()]
    return "Data read to resume in the middle of an epoch (`order.py`):\n\n" + table(
        ["system", "workers", *names], cells
    )


def resume() -> str:
    found = result("resume")["found"]
    rows = [[name, *(resume_text(entry) for entry in cases.values())] for name, cases in found.items()]
    return (
        "Final weights after SIGKILL in the middle of an epoch and the same command again, compared with the "
        "uninterrupted run; a checkpoint every 6 updates or every epoch (`resume.py`):\n\n"
        + table(["system", *found["trueloop"]], rows)
    )


def resume_text(entry: dict[str, Any]) -> str:
    if "error" in entry:
        return f"fails: {entry['error']}"
    if not entry["repeatable"]:
        return "not repeatable"
    return "bitwise equal" if entry["equal"] else f"off by {100 * entry['difference']:.1f} %"


def bitflip() -> str:
    measured = result("bitflip")
    found = measured["found"]
    *outcomes, median, highest = next(iter(found.values()))
    rows = [
        [name, *(str(entry[outcome]) for outcome in outcomes), *(percent(entry[key]) for key in (median, highest))]
        for name, entry in found.items()
    ]
    return (
        f"{measured['settings']['flips']} resumes, each after one bit of the newest checkpoint was flipped; deviations "
        "are those of finite weights (`bitflip.py`):\n\n"
        + table(["system", *map(label, outcomes), *map(label, (median, highest))], rows)
    )


def percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2g} %"


def checkpoints() -> str:
    found = result("checkpoints")["found"]
    pairs = [
        ("stall", "asynchronous save, training waits", "blocking save"),
        ("save", "trueloop", "safetensors, synced"),
        ("load from memory", "trueloop", "safetensors"),
        ("load from disk", "trueloop", "safetensors"),
    ]
    rows = [
        [
            task,
            f"{system} / {reference}",
            *(f"{1e3 * found[task][name]['seconds']['median']:.0f}" for name in (system, reference)),
            ratio(found[task][system]["ratio_to"][reference]),
        ]
        for task, system, reference in pairs
    ]
    sizes = result("checkpoints")["settings"]["mib"]
    return (
        f"Checkpoints of {sizes['stall']} MiB (stall) and {sizes['save and load']} MiB, compared with plain "
        "safetensors, which has no checksums (`checkpoints.py`):\n\n"
        + table(["", "compared", "first, ms", "second, ms", "ratio"], rows)
    )


def faults() -> str:
    measured = result("faults")
    outcomes = {
        "equal": "bitwise equal",
        "reported": "clear error, then equal",
        "failed": "failures",
        "not run": "not run",
    }
    found = measured["found"]
    found = {**found, "all": {outcome: sum(counts[outcome] for counts in found.values()) for outcome in outcomes}}
    outcomes = {outcome: text for outcome, text in outcomes.items() if outcome != "not run" or found["all"][outcome]}
    rows = [
        [label(fault), str(sum(counts.values())), *(str(counts[outcome]) for outcome in outcomes)]
        for fault, counts in found.items()
    ]
    return (
        "Weights, journal and best value after a fault, compared with the undisturbed run (`make faults`, "
        f"{measured['settings']['minutes']:.0f} minutes):\n\n" + table(["fault", "cases", *outcomes.values()], rows)
    )


def watch() -> str:
    """Return the cost of the sanitizer."""
    found = result("watch")["found"]
    names = {"mlp": "MLP 64-128-10", "gpt": "small GPT", "cnn": "small CNN"}
    measured = {load: {**entry["systems"], **entry.get("traincheck", {})} for load, entry in found.items()}
    systems = [system for system in measured["mlp"] if system != "bare"]
    ratios = {system: [measured[load][system] for load in names] for system in systems}
    rows = [
        [label(system), *(spread(each["wall_ratio_to_bare"], 3) for each in loads)] for system, loads in ratios.items()
    ]
    max_gap = max(
        clock_gap(entry, "wall_ratio_to_bare", "cpu_ratio_to_bare") for loads in ratios.values() for entry in loads
    )
    versions = {(e["traincheck_version"], e["traincheck_date"]) for e in found.values() if "traincheck_version" in e}
    traincheck_note = "".join(
        f"; TrainCheck {version} in its own environment, over fewer updates, on {date}"
        for version, date in sorted(versions)
    )
    return (
        "Time per update of an unmodified script under each tool that searches for silent bugs, relative to the bare "
        f"script within a round: median and middle 80 %; ratios of CPU time differ by at most {max_gap:.3f} (`watch.py`"
        f"{traincheck_note}).\n\n" + table(["tool", *names.values()], rows)
    )


def lint() -> str:
    """Return the speed and memory of the linter."""
    found = result("lint")["found"]
    eighth_mib, all_mib = found["peak_mib"].values()
    rows = [
        [
            f"files per second, {found['files']:,} files, {found['processes']} processes",
            f"{found['files_per_second']:,.0f}",
        ],
        ["seconds to the first finding in a single file", spread(found["seconds_to_first_finding"], 3)],
        ["peak memory in MiB for an eighth of the files, and for all", f"{eighth_mib:.0f}, {all_mib:.0f}"],
    ]
    text = f"`trueloop lint`, {found['rules']} rules, on the source of the torch package (`lint.py`):\n\n" + table(
        ["", "measured"], rows
    )
    if peer := found.get("torchfix"):
        rates = peer["files_per_second_one_process"]
        rows = [[name, spread(each, 1)] for name, each in rates.items()]
        text += (
            f"\nThe same with TorchFix {peer['version']}, on {peer['files']} of the files with one process each; it "
            "checks for other mistakes, mostly deprecated names:\n\n" + table(["", "files per second"], rows)
        )
    return text


def journal() -> str:
    """Return the cost of the journal of a run."""
    measured = result("journal")
    rows = [
        [
            f"updates of {pace}",
            spread(entry["report_us"], 1),
            f"{entry['megabytes']:.0f}",
            spread(entry["read_s"], 1),
            f"{entry['peak_mib']:.0f}",
        ]
        for pace, entry in measured["found"].items()
    ]
    head = ["", "µs per update", "MB per 10^6 updates", "seconds to read 10^6 back", "MiB to read them"]
    return "Cost of the journal, by the duration of an update (`journal.py`):\n\n" + table(head, rows)


def runs() -> str:
    """Return the times of queries over many runs."""
    found = result("runs")["found"]
    queries = [[f"`runs {question}`", spread(seconds, 2)] for question, seconds in found["seconds"].items()]
    first = [["the first query, without the index", f"{found['seconds_first_time']:.1f}"]]
    caption = f"Queries over {found['runs']:,} runs, each a process from start to end (`runs.py`):\n\n"
    return caption + table(["", "seconds"], [*queries, *first])


def serving() -> str:
    """Return the time of an answer of each exported or compiled model."""
    found = result("serving")["found"]
    modes = list(next(iter(found.values())))
    rows = [[name, *(f"{entry[mode]['ratio']['median']:.2f}" if mode in entry else "" for mode in modes[1:])]
            for name, entry in found.items() if modes[0] in entry]  # fmt: skip
    return (
        "Time of an answer relative to eager mode with gradients, by recipe and batch size (`serving.py`):\n\n"
        + table(["recipe", *modes[1:]], rows)
    )


def memory_options() -> str:
    """Return the memory saved and the time lost by each memory option."""
    rows = [
        [name, *(f"{entry[which] / 2**20:.1f}" for which in ("plain_bytes", "saving_bytes")), ratio(entry["cpu_ratio"])]
        for name, entry in result("memory_options")["found"].items()
    ]
    return (
        "Peak memory of one forward and backward pass without and with each option, and the ratio of CPU time "
        "(`memory_options.py`):\n\n" + table(["", "MiB without", "MiB with", "time"], rows)
    )


def lab() -> str:
    """Return the response times of the lab."""
    data = result("lab")
    found, class_found = data["found"], data["found"]["class"]
    goals = {name: f"{value:g}" for name, value in data["goals"].items()}
    rows = [[name, f"{value:.3g}", goals.get(name, "")] for name, value in found["one session"].items()]
    late_text = ", ".join(f"{code} {_seconds(found['findings'][code])}" for code in found["later than the goal"])
    late_sentence = (
        f"Of {len(found['findings'])} failures that can be switched on, these are named later than the goal: "
        f"{late_text}. Most of them are certain only after several epochs.\n"
    )
    return (
        "`trueloop lab` in headless Chromium on the same machine, with the simulator at full speed (`lab.py`):\n\n"
        + table(["", "measured", "goal"], rows)
        + (f"\n{late_sentence}" if late_text else "")
        + f"\nWith {class_found['sessions']} sessions training together, each paints "
        f"{class_found['painted updates/s each, median']:.1f} times a second (slowest: "
        f"{class_found['painted updates/s each, least']:.1f}), requests of other pages are answered within "
        f"{class_found['answer to a question p95, ms']:.0f} ms (95th percentile), and all processes use "
        f"{class_found['memory of all processes, MiB']:.0f} MiB.\n"
    )


def _seconds(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.1f} s"


def spread(measured: dict[str, float], digits: int) -> str:
    """Return a median and the range of the middle 80 %."""
    rounded = (round(measured[name], digits) + 0.0 for name in ("median", "low", "high"))  # + 0.0: no "-0.00"
    median, low, high = (f"{value:.{digits}f}" for value in rounded)
    return f"{median} ({low}\N{EN DASH}{high})"


BASE = ("torch", "numpy")


SCRIPTS = {
    "accumulation.py": "deviation of accumulated updates from one big batch",
    "overhead.py": "time per update next to the bare loop and other systems",
    "speed.py": "whole runs; compiled updates",
    "processes.py": "two processes with DDP and FSDP",
    "gpu.py": "a GPT-2-sized model on a CUDA device",
    "memory_options.py": "memory options",
    "components.py": "lines, memory and time of each component",
    "nonfinite.py": "weights after a batch with a NaN",
    "resume.py": "weights after a kill in mid-epoch",
    "bitflip.py": "detection of a flipped bit",
    "checkpoints.py": "how long training waits for a checkpoint",
    "order.py": "data order: speed, seeking, memory, resume",
    "watch.py": "cost of the sanitizer",
    "lint.py": "speed and memory of the linter",
    "wild.py": "findings of the linter on public repositories, judged by hand",
    "journal.py": "cost and size of the journal",
    "runs.py": "queries over many runs",
    "serving.py": "time of an answer",
    "lab.py": "response times of the lab in a browser",
    "make faults": "kills, damaged files, full disks",
}


def measured_on() -> str:
    """Return the machine, and each script with its settings."""
    data = {path.stem: result(path.stem) for path in sorted(RESULTS.glob("*.json"))}
    machines = {name: machine(each["machine"]) for name, each in data.items()}
    peers = {name: peer_versions(each["machine"]["versions"]) for name, each in data.items()}
    common_peers = max(set(peers.values()), key=list(peers.values()).count)
    first_machine, *other_machines = set(machines.values())
    dates = sorted(each["machine"]["date"] for each in data.values())
    note = "" if other_machines else f" All of them on {first_machine}."
    without_peers = ", ".join(f"`{name}`" for name in data if not peers[name])
    missing = f" (none with {without_peers})" if without_peers else ""
    rows = []
    for script, purpose in SCRIPTS.items():
        name = script.removesuffix(".py").removeprefix("make ")
        found = data.get(name)
        load = f"{found['machine']['load_average']:.1f}" if found else ""
        cells = [
            f"`{script}`",
            purpose,
            load,
            settings_text(found.get("settings", {})) if found else "not measured yet",
        ]
        rows.append([*cells, machines.get(name, "")] if other_machines else cells)
    return (
        f"Measured from {dates[0]} to {dates[-1]}, one thread each.{note} Other systems{missing}: {common_peers}. "
        "The load average is that at the end, including the benchmark.\n\n"
        + table(["script", "what it measures", "load", "settings", *(["machine"] if other_machines else [])], rows)
    )


def peer_versions(versions: dict[str, str]) -> str:
    """Return the versions of the compared systems."""
    return ", ".join(f"{key} {value}" for key, value in versions.items() if key not in ("trueloop", *BASE))


def machine(facts: dict[str, Any]) -> str:
    """Describe a machine."""
    versions = ", ".join(f"{name} {facts['versions'][name]}" for name in BASE)
    device = facts.get("device", facts["cpu"])
    return (
        f"{device}, {facts['cores']} cores, {facts['system'].partition('-')[0]}, Python {facts['python']}, {versions}"
    )


def settings_text(settings: dict[str, Any]) -> str:
    """Return settings as one line."""
    parts = []
    for name, value in settings.items():
        if isinstance(value, dict) and len(set(map(str, value.values()))) == 1:
            value = f"{next(iter(value.values()))} each"  # noqa: PLW2901 - the shorter form of the same value
        text = (
            f"({settings_text(value)})"
            if isinstance(value, dict)
            else f"{value:,}"
            if isinstance(value, int)
            else value
        )
        parts.append(f"{name.replace('_', ' ')} {text}")
    return ", ".join(parts)


HEADINGS = {
    "accumulation": "Accumulated updates", "nonfinite": "A batch with a NaN", "resume": "Killed and resumed",
    "faults": "Faults", "bitflip": "One flipped bit", "overhead": "Time per update",
    "speed": "Whole runs and compiled updates", "processes": "Two processes", "gpu": "On a GPU",
    "components": "Components", "texts": "Programs of the lab", "checkpoints": "Checkpoints",
    "order": "Data order", "memory_options": "Memory options", "watch": "The sanitizer", "lint": "The linter",
    "journal": "The journal", "runs": "Queries over runs", "serving": "Serving", "lab": "The lab",
}  # fmt: skip
LABELS = {
    "trueloop run, sampled tracing": "`trueloop run`, sampled tracing",
    "trueloop run --lab, sampled tracing": "the same with `--lab`",
    "trueloop run, full tracing": "`trueloop run`, full tracing of every update",
}
"""Words of the page for names in the results, where the two differ."""


def label(name: str) -> str:
    """Return the text of the page for a name in the results."""
    return LABELS.get(name, name)


def figures() -> str:
    """Return the summary, the figures of each benchmark, and the machine."""
    writers = {
        "accumulation": accumulation, "nonfinite": nonfinite, "resume": resume, "faults": faults, "bitflip": bitflip,
        "overhead": overhead, "speed": fast, "processes": processes, "gpu": gpu, "components": components,
        "texts": texts, "checkpoints": checkpoints, "order": order, "memory_options": memory_options, "watch": watch,
        "lint": lint, "journal": journal, "runs": runs, "serving": serving, "lab": lab,
    }  # fmt: skip
    measured = {
        name: write for name, write in writers.items() if name == "texts" or (RESULTS / f"{name}.json").exists()
    }
    sections = [f"### {HEADINGS[name]}\n\n{write()}" for name, write in measured.items()]
    return "\n".join(
        [f"## Summary\n\n{summary()}", "## Figures\n", *sections, f"## Scripts and settings\n\n{measured_on()}"]
    )


PEERS = {
    "raw loop": {
        "accumulation": "raw loop, loss / K", "resume": "raw loop, state_dict checkpoint",
        "bitflip": "raw loop, state_dict checkpoint", "speed": "production loop by hand, fused",
    },
    "Lightning": {"accumulation": "Lightning accumulate_grad_batches", "speed": "Lightning, barebones, fused"},
    "Accelerate": {"accumulation": "Accelerate accumulate()", "speed": "Accelerate, fused"},
    "HF Trainer": {"accumulation": "HF Trainer, model's own loss", "speed": "HF Trainer, fused"},
}  # fmt: skip
"""Name of each peer of README's table within a result, where it differs."""


def summary() -> str:
    """Return the headline figures."""
    deviations, flips = result("accumulation")["deviation"]["SGD"], result("bitflip")
    resumes, finite = result("resume")["found"], result("nonfinite")["found"]
    faults_found = list(result("faults")["found"].values())
    cases, lost = sum(sum(counts.values()) for counts in faults_found), sum(counts["failed"] for counts in faults_found)
    flip_count = flips["settings"]["flips"]
    rows = [
        headline("error of accumulated updates, ragged batches", "accumulation",
                 lambda name: share(deviations[name]["both"]["of_movement"])),
        headline("finite weights after one batch with a NaN", "nonfinite",
                 lambda name: f"{100 * finite[name]['finite']:.0f} %"),
        headline("final weights after SIGKILL and resume, a checkpoint every 6 updates", "resume",
                 lambda name: resume_text(resumes[name]["0 workers, every 6"])),
        [f"[runs with lost results](#{anchor('faults')}), of {cases:,} killed, damaged or out of disk space",
         str(lost), ""],
        headline(f"wrong weights loaded silently, of {flip_count} checkpoints with one flipped bit", "bitflip",
                 lambda name: str(flips["found"][name]["wrong weights, silently"])),
        *loop_headlines(),
        *cost_headlines(),
    ]  # fmt: skip
    return "Medians; a relative time below 1 is faster than the reference.\n\n" + table(
        ["", "trueloop", "compared with"], rows
    )


def headline(text: str, benchmark: str, cell: Callable[[str], str]) -> list[str]:
    """Return the row of a figure that all peers have."""
    peers = (f"{system} {cell(names.get(benchmark, system))}" for system, names in PEERS.items())
    return [f"[{text}](#{anchor(benchmark)})", cell("trueloop"), ", ".join(peers)]


def loop_headlines() -> list[list[str]]:
    """Return the rows about the time of an update."""
    loops, hand = result("speed")["found"]["loops"], PEERS["raw loop"]["speed"]

    def time(task: str, name: str) -> str:
        return "1" if name == hand else f"{loops[task][name]['wall_ratio_to'][hand]['median']:.2f}"

    ddp_ratios = result("processes")["found"]["gpt ddp"]["trueloop"]["wall_ratio_to"]
    return [
        *(headline(f"time per update, {text}, relative to the same work by hand", "speed",
                   lambda name, task=task: time(task, name))
          for task, text in (("mlp", "small MLP"), ("gpt", "small GPT"))),
        [f"[the same, compiled](#{anchor('speed')})", time("gpt", "trueloop --compile"),
         f"compiled by hand {time('gpt', 'update compiled by hand')}"],
        [f"[the same, two processes with DDP](#{anchor('processes')})",
         f"{ddp_ratios['by hand: clipped, scheduled, recorded']['median']:.2f}", "by hand 1"],
    ]  # fmt: skip


def cost_headlines() -> list[list[str]]:
    """Return the rows about the cost of single parts."""
    stall = {name: 1e3 * entry["seconds"]["median"] for name, entry in result("checkpoints")["found"]["stall"].items()}
    seek = {name: 1e3 * entry["wall"]["median"] for name, entry in result("order")["seek_s"].items()}
    watched = result("watch")["found"]["gpt"]
    ratios = {name: f"{entry['wall_ratio_to_bare']['median']:.3f}"
              for name, entry in {**watched["systems"], **watched.get("traincheck", {})}.items()}  # fmt: skip
    others = [name for name in ("set_detect_anomaly(True)", "TrainCheck, selective") if name in ratios]
    lint_found, journal_us = result("lint")["found"], next(iter(result("journal")["found"].values()))["report_us"]
    rates = {
        name: f"{each['median']:.0f}" for name, each in lint_found["torchfix"]["files_per_second_one_process"].items()
    }
    queries = result("runs")["found"]
    return [
        [f"[time training waits for a checkpoint](#{anchor('checkpoints')})",
         f"{stall['asynchronous save, training waits']:.0f} ms", f"blocking save {stall['blocking save']:.0f} ms"],
        [f"[first index in the middle of a shuffled epoch](#{anchor('order')})",
         f"{seek['trueloop, the middle of 4 million']:.2f} ms",
         f"RandomSampler {seek['torch RandomSampler, the same']:.0f} ms"],
        [f"[time per update, small GPT under `trueloop run`](#{anchor('watch')})",
         ratios["trueloop run, sampled tracing"],
         ", ".join(f"{name} {ratios[name]}" for name in others)],
        [f"[files per second of the linter, one process](#{anchor('lint')})", rates["trueloop lint"],
         f"TorchFix {rates['TorchFix']}"],
        [f"[journal, per update](#{anchor('journal')})", f"{journal_us['median']:.1f} µs", ""],
        [f"[`runs list` over {queries['runs']:,} runs](#{anchor('runs')})",
         f"{queries['seconds']['list']['median']:.2f} s", ""],
        [f"[first paint of the lab](#{anchor('lab')})",
         f"{result('lab')['found']['one session']['first paint, s']:.2f} s", ""],
    ]  # fmt: skip


def anchor(benchmark: str) -> str:
    """Return the anchor of a benchmark's section."""
    return HEADINGS[benchmark].lower().replace(" ", "-")


def readme_figures() -> str:
    """Return the table of the README: trueloop and its peers, one row per promise."""
    systems = {"trueloop": {}, **PEERS}
    deviations = result("accumulation")["deviation"]["SGD"]
    flips, loops = result("bitflip"), result("speed")["found"]["loops"]
    hand = PEERS["raw loop"]["speed"]

    def row(text: str, benchmark: str, cell: Callable[[str], str]) -> list[str]:
        return [text, *(cell(names.get(benchmark, system)) for system, names in systems.items())]

    resumes = result("resume")["found"]
    by_epoch = [
        each for each in PEERS if resumes[PEERS[each].get("resume", each)]["0 workers, every epoch"].get("equal")
    ]
    finite = result("nonfinite")["found"]
    rows = [
        row("error of accumulated updates on ragged batches, as a share of the weights' movement", "accumulation",
            lambda name: share(deviations[name]["both"]["of_movement"])),
        row("final weights after SIGKILL in mid-epoch and a resume, a checkpoint every 6 updates", "resume",
            lambda name: resume_text(resumes[name]["0 workers, every 6"])),
        row(f"checkpoints with one flipped bit that load wrong weights silently, of {flips['settings']['flips']}",
            "bitflip",
            lambda name: str(flips["found"][name]["wrong weights, silently"])),
        row("finite weights left after one batch with a NaN", "nonfinite",
            lambda name: f"{100 * finite[name]['finite']:.0f} %"),
        *(row(f"time per update of {text}, relative to the same work written by hand", "speed",
              lambda name, task=task: "1" if name == hand else ratio(loops[task][name]["wall_ratio_to"][hand]))
          for task, text in (("mlp", "a small MLP"), ("gpt", "a small GPT"))),
    ]  # fmt: skip
    versions = result("accumulation")["machine"]["versions"]
    libraries = ", ".join(f"{name} {versions[name]}" for name in ("torch", "lightning", "accelerate", "transformers"))
    watched = spread(
        result("watch")["found"]["gpt"]["systems"]["trueloop run, sampled tracing"]["wall_ratio_to_bare"], 3
    )
    faults_found = list(result("faults")["found"].values())
    cases, lost = sum(sum(counts.values()) for counts in faults_found), sum(counts["failed"] for counts in faults_found)
    return (
        table(["", *systems], rows)
        + f"\nEach system is used as its own documentation says, with {libraries}.\nAccelerate's recipe for samples of "
        "variable size and the HF Trainer's `compute_loss_func` also accumulate exactly;\nwith a checkpoint per epoch "
        f"{' and '.join(by_epoch) or 'none of them'} also resume bitwise. Times are medians with the\nmiddle 80 % of "
        f"interleaved rounds. Under `trueloop run`, an update of the small GPT takes {watched}\ntimes as long. Of "
        f"{cases:,} runs that were killed, damaged or out of disk space, {lost or 'none'} lost anything\n"
        "([faults](docs/benchmarks.md#faults)). `make bench` writes all figures from "
        "[results](docs/benchmarks.md#figures).\n"
    )


def public_code_figures() -> str:
    """Return what was found in public repositories, and how much of it is right."""
    found, date = result("wild")["found"], result("wild")["machine"]["date"]
    records = json.loads(JUDGED.read_text(encoding="utf-8"))
    counted = {each["repository"] for each in found["repositories"]}
    judged = [each for each in records if each["repository"] in counted]
    read: dict[str, Counter[str]] = defaultdict(Counter)
    for each in judged:
        read[f"{each['severity']}s"][each["verdict"]] += len(each["lines"])
        read[f"{each['severity']}s, each code once per file"][each["verdict"]] += 1
    verdicts = ("true", "arguable", "false")
    rows = [[name, *(str(verdict[each]) for each in verdicts)] for name, verdict in read.items()]
    now = [f"errors and warnings of the version of {date}", *(str(found["all"][each]) for each in verdicts)]
    by_code: dict[str, Counter[str]] = defaultdict(Counter)
    wrong: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for each in judged:
        by_code[each["code"]][each["verdict"]] += len(each["lines"])
        if each["verdict"] == "false":
            wrong[each["code"], each["repository"], each["why"]] += [f"{each['path']}:{n}" for n in each["lines"]]
    codes = [
        [code, *(str(by_code[code][each]) for each in verdicts)]
        + [str(found["severities"].get(code, {}).get(each, 0)) for each in ("error", "warning", "note")]
        for code in sorted({*by_code, *found["severities"]})
    ]
    false = [
        [code, f"{repository}, {places[0]}", str(len(places)), why]
        for (code, repository, why), places in sorted(wrong.items())
    ]
    return (
        f"{len(found['repositories'])} repositories, {found['files']:,} files and notebooks:\n\n"
        + table(["findings", *verdicts], [*sorted(rows), now])
        + f"\nBy code: the verdicts of all readings, and what the version of {date} reports. Notes were not judged.\n\n"
        + table(["code", *verdicts, "errors", "warnings", "notes"], codes)
        + "\nThe false ones:\n\n"
        + table(["code", "where, the first of them", "findings", "why it is false"], false)
    )


def public_code(text: str) -> str:
    """Return the page on public code with its counts written again from the results."""
    return replace_figures(text, public_code_figures())


def page(text: str) -> str:
    """Return the page with its figures written again from the results."""
    return replace_figures(text, figures())


def readme(text: str) -> str:
    """Return the README with its table written again from the results."""
    return replace_figures(text, readme_figures())


def replace_figures(text: str, figures: str) -> str:
    before, after = text.split(BEGIN)
    return before + BEGIN + "\n" + figures + "\n" + END + after.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    README.write_text(readme(README.read_text(encoding="utf-8")), encoding="utf-8")
    PUBLIC_CODE.write_text(public_code(PUBLIC_CODE.read_text(encoding="utf-8")), encoding="utf-8")
