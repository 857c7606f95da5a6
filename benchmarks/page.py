"""Writes the figures of benchmarks/results into docs/benchmarks.md and README.md, so that none is typed by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "benchmarks" / "results", ROOT / "docs" / "benchmarks.md"
README = ROOT / "README.md"
BEGIN, END = "<!-- figures: begin (written by benchmarks/page.py) -->\n", "<!-- figures: end -->\n"


def result(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def share(value: float) -> str:
    return "0" if value < 1e-12 else f"{100 * value:.0f} %"


def accumulation() -> str:
    found = result("accumulation")["deviation"]["SGD"]
    cases = list(found["trueloop"])
    rows = [[name, *(share(measured[case]["of_movement"]) for case in cases)] for name, measured in found.items()]
    return (
        "Deviation of the weights' trajectory from that of the one big batch, as a share of the movement, SGD, "
        "float64 (`accumulation.py`; 0 is below 1e-12):\n\n" + table(["system", *cases], rows)
    )


def overhead() -> str:
    found = result("overhead")["found"]
    tasks = {"mlp": "MLP 32-64-10", "gpt": "small GPT", "cnn": "small CNN"}
    references = ["bare five lines, default AdamW", "by hand, default AdamW", "by hand, fused AdamW"]
    rows = [
        [tasks[task], name, *(ratio(measured["wall_ratio_to"][reference]) for reference in references)]
        for task in tasks
        for name, measured in found[task].items()
        if name not in references
    ]
    defaults = found["textbook"]["trueloop, its default settings"]["wall_ratio_to"]["textbook loop"]
    return (
        "Time per update with clipping, a schedule and the norm recorded, as a ratio within a round: median and middle "
        "80 % (`overhead.py`; the bare loop does none of the three):\n\n"
        + table(["task", "system", *(f"/ {reference}" for reference in references)], rows)
        + f"\nThe defaults of `trueloop train` take {ratio(defaults)} of the textbook loop's time on the small CNN.\n"
    )


def fast() -> str:
    """Tell how fast whole runs and compiled updates are."""
    found = result("speed")["found"]
    tasks = {"mlp": "MLP 32-64-10", "gpt": "small GPT", "cnn": "digits CNN"}
    textbooks = ("textbook, mixed precision", "textbook, float32")
    runs = [
        [tasks[task], name, *(ratio(seen["wall_ratio_to"][each]) for each in textbooks)]
        for task, systems in found["whole runs"].items()
        for name, seen in systems.items()
        if name not in textbooks
    ]
    references = ("raw loop", "production loop by hand, fused")
    loops = [
        [tasks[task], name, *(ratio(seen["wall_ratio_to"][each]) for each in references)]
        for task, systems in found["loops"].items()
        for name, seen in systems.items()
        if name != "raw loop"
    ]
    return (
        "Time per update of whole runs, shuffled batches of a dataset, next to the loops of PyTorch's tutorials "
        "and of nanoGPT with and without mixed precision (`speed.py`):\n\n"
        + table(["task", "system", *(f"/ {each}" for each in textbooks)], runs)
        + "\nTime per update on ready batches, once everything is compiled; the raw loop neither clips nor schedules "
        "nor records (`speed.py`):\n\n" + table(["task", "system", *(f"/ {each}" for each in references)], loops)
    )


def processes() -> str:
    """Tell what an update takes on two processes."""
    data = result("processes")
    engines = {"ddp": "DistributedDataParallel", "fsdp": "fully_shard"}
    tasks = {"mlp": "MLP 32-64-10", "gpt": "small GPT", "cnn": "small CNN"}
    references = ("bare five lines", "by hand: clipped, scheduled, recorded")
    systems = (*references, "trueloop")
    rows = [
        [
            tasks[name.split()[0]],
            engines[name.split()[1]],
            f"{seen[references[0]]['seconds_per_update']['median'] * 1e3:.1f}",
            *(ratio(seen["trueloop"]["wall_ratio_to"][each]) for each in references),
            *(ratio(seen["trueloop"]["cpu_ratio_to"][each]) for each in references),
            " / ".join(f"{seen[system]['messages_per_update']:g}" for system in systems),
        ]
        for name, seen in data["found"].items()
    ]
    columns = [
        "task", "engine", "ms, bare", *(f"trueloop / {each}" for each in references),
        "/ bare, CPU time", "/ by hand, CPU time",
        "messages per update, bare / by hand / trueloop",
    ]  # fmt: skip
    return (
        f"Time per update of {data['settings']['processes']} processes on gloo, as a ratio to loops over the same "
        "PyTorch engine (`processes.py`; the bare one neither clips nor schedules nor records; load average "
        f"{data['machine']['load_average']:.0f} on {data['machine']['cores']} cores):\n\n"
        + table(columns, rows)
        + f"\nA message of four numbers took {data['small_message_s']['median'] * 1e6:.0f} µs there: on small models "
        "an update is made of messages. With DistributedDataParallel trueloop sends none but the gradients', in which "
        "its sums, its counts and the word to stop travel along, and the statistics of batch normalisation, which "
        "plain DDP sends apart by dtype; what is left above the bare loop is the norm, and what it takes to pack and "
        "read a few numbers. With "
        "fully_shard the norm of the gradients lies in parts on all processes, and has to be known to all of them "
        "before one of them steps, to clip by it or to leave a window out that is not finite: that is one message "
        "more than the bare loop has, which does neither, and in it travels everything else.\n"
    )


def gpu() -> str:
    """Tell what a large model does on a CUDA device."""
    measured = result("gpu")
    found, loop = measured["found"], "nanoGPT-style loop"
    rows = [
        [
            name,
            f"{1 / seen['seconds_per_update']['median']:.2f}",
            ratio(seen["ratio_to"][loop]),
            f"{100 * seen['share_of_product_rate']:.0f} %",
            f"{seen['peak_mib'] / 1024:.1f}",
        ]
        for name, seen in found["training"].items()
    ]
    forward = ratio(found["forward only"]["inference_mode / no_grad"])
    return (
        f"A GPT-2-sized model in bf16 on {measured['settings']['device']} (`gpu.py`):\n\n"
        + table(["system", "updates/s", f"time / {loop}", "of a matrix product's rate", "peak GiB"], rows)
        + f"\nForward passes under `inference_mode` take {forward} of the time under `no_grad`.\n"
    )


def ratio(measured: dict[str, float]) -> str:
    return spread(measured, 2)


def nonfinite() -> str:
    rows = [
        [name, f"{100 * seen['finite']:.0f} %", str(seen["exit"])]
        for name, seen in result("nonfinite")["found"].items()
    ]
    return "What one batch with a NaN in it leaves of the weights (`nonfinite.py`):\n\n" + table(
        ["system", "finite weights", "exit code"], rows
    )


def components() -> str:
    found = result("components")["components"]
    rows = [
        [name, str(sum(seen["lines"].values())), *(cell for task in ("mlp", "gpt") for cell in cost(seen.get(task)))]
        for name, seen in found.items()
    ]
    head = ["component", "lines", "MLP: memory, MiB", "MLP: time", "GPT: memory, MiB", "GPT: time"]
    return (
        "What each component adds to the plain loop: its lines of code, the peak memory of tensors, and CPU time per "
        "update as a ratio to the plain loop's (`components.py`):\n\n" + table(head, rows)
    )


def cost(seen: dict[str, Any] | None) -> list[str]:
    if seen is None:
        return ["", ""]
    return [f"{seen['extra_bytes'] / 2**20:+.2f}", ratio(seen["cpu_ratio"]) if "cpu_ratio" in seen else "1"]


def texts() -> str:
    """Tell what the programs of the lab's production page cost."""
    data = result("components")["texts"]
    rows = [
        [name, *(ratio(seen[name][f"{clock}_ratio"]) for seen in data["found"].values() for clock in ("wall", "cpu"))]
        for name in data["found"]["mlp"]
    ]
    facts, examples = data["machine"], data["settings"]["examples"]
    head = ["component", "MLP: wall", "MLP: CPU time", "small CNN: wall", "small CNN: CPU time"]
    return (
        "The programs that `trueloop lab` writes out on its page about the production loop, in bare PyTorch: time per "
        f"update as a ratio to the minimal loop's, with epochs of {examples:,} examples (`components.py`; on "
        f"{facts['cpu']}, torch {facts['versions']['torch']}):\n\n" + table(head, rows)
    )


def order() -> str:
    found = result("order")
    return "\n".join([speed(found), seeking(found), memory(found), seeding(found), skipping(found)])


def speed(found: dict[str, Any]) -> str:
    rows = [
        [name, spread(seen["million_per_s"], 1), ratio(seen["cpu_ratio_to_randperm"])]
        for name, seen in found["throughput"].items()
    ]
    return (
        f"The order of an epoch of {found['settings']['samples']:,} samples, where no other size is named: indices per "
        "second of one core's time (`order.py`):\n\n"
        + table(["system", "million indices per s", "time / torch.randperm"], rows)
    )


def seeking(found: dict[str, Any]) -> str:
    rows = [
        [name, str(seen["times"]), *(f"{1e3 * seen['wall'][which]:.2f}" for which in ("median", "worst"))]
        for name, seen in found["seek_s"].items()
    ]
    return (
        "Time to the first batch from a position on, in an epoch never seen before, in ms by the wall; the worst ones "
        "waited for the machine's other tenants as well (`order.py`):\n\n"
        + table(["system", "tries", "median", "worst"], rows)
    )


def memory(found: dict[str, Any]) -> str:
    rows = [
        [name, *("" if grown is None else f"{grown / 2**20:.1f}" for grown in seen.values())]
        for name, seen in found["memory_bytes"].items()
    ]
    return (
        "Growth of the process's peak memory up to a thousand batches in the middle of an epoch of N samples, in MiB "
        "(`order.py`; an empty cell was not tried):\n\n" + table(["system", *found["memory_bytes"]["trueloop"]], rows)
    )


def seeding(found: dict[str, Any]) -> str:
    rows = [
        [name, f"{seen['off']:.2f}", f"{seen['on']:.2f}", spread(seen["difference"], 2)]
        for name, seen in found["seeding_us"].items()
    ]
    return (
        "Random numbers that belong to the sample: time per sample without and with seeding, in microseconds "
        "(`order.py`):\n\n" + table(["data", "off", "on", "difference"], rows)
    )


def skipping(found: dict[str, Any]) -> str:
    heads = list(found["resume"]["trueloop, dataset"]["0 workers"])
    rows = [
        [name, workers, *(str(count) for count in seen.values())]
        for name, ways in found["resume"].items()
        for workers, seen in ways.items()
    ]
    return "What is read to go on in the middle of an epoch (`order.py`):\n\n" + table(
        ["system", "read by", *heads], rows
    )


def resume() -> str:
    found = result("resume")["found"]
    rows = [[name, *(resumed(seen) for seen in cases.values())] for name, cases in found.items()]
    return (
        "The final weights after SIGKILL in the middle of an epoch and the same command again, against those of the "
        "uninterrupted run (`resume.py`; a checkpoint every 6 updates or every epoch):\n\n"
        + table(["system", *found["trueloop"]], rows)
    )


def resumed(seen: dict[str, Any]) -> str:
    if "error" in seen:
        return f"fails: {seen['error']}"
    if not seen["repeatable"]:
        return "not repeatable"
    return "bitwise equal" if seen["equal"] else f"off by {100 * seen['difference']:.1f} %"


def bitflip() -> str:
    measured = result("bitflip")
    found = measured["found"]
    *outcomes, median, most = next(iter(found.values()))
    rows = [
        [name, *(str(seen[outcome]) for outcome in outcomes), *(percent(seen[key]) for key in (median, most))]
        for name, seen in found.items()
    ]
    return (
        f"{measured['settings']['flips']} resumes, each after one bit was flipped somewhere in the newest checkpoint "
        "(`bitflip.py`; how far off the final weights are is said of those that are finite):\n\n"
        + table(["system", *outcomes, median, most], rows)
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
            f"{mine} / {its}",
            *(f"{1e3 * found[task][name]['seconds']['median']:.0f}" for name in (mine, its)),
            ratio(found[task][mine]["ratio_to"][its]),
        ]
        for task, mine, its in pairs
    ]
    sizes = result("checkpoints")["settings"]["mib"]
    return (
        f"Checkpoints, of {sizes['stall']} MiB for the stall and of {sizes['save and load']} MiB otherwise, against "
        "plain safetensors, which checks nothing (`checkpoints.py`):\n\n"
        + table(["", "compared", "ms", "ms", "ratio"], rows)
    )


def faults() -> str:
    measured = result("faults")
    hows = {"equal": "bitwise equal", "reported": "clear error, then equal", "failed": "failures", "not run": "not run"}
    found = measured["found"]
    found = {**found, "all": {how: sum(counts[how] for counts in found.values()) for how in hows}}
    rows = [[fault, str(sum(counts.values())), *(str(counts[how]) for how in hows)] for fault, counts in found.items()]
    return (
        "What is left of a run after a fault: the weights, the journal and the best value against those of the "
        f"undisturbed run (`make faults`, {measured['settings']['minutes']:.0f} minutes):\n\n"
        + table(["fault", "cases", *hows.values()], rows)
    )


def watch() -> str:
    """Tell what watching costs."""
    found = result("watch")["found"]
    names = {"mlp": "MLP 64-128-10", "gpt": "small GPT", "cnn": "small CNN"}
    rows: list[list[str]] = []
    for load, measured in found.items():
        everybody = {**measured["systems"], **measured.get("traincheck", {})}
        for system, seen in everybody.items():
            if system != "bare":
                ratios = (spread(seen[f"{clock}_ratio_to_bare"], 3) for clock in ("wall", "cpu"))
                rows.append([names[load], system, *ratios])
    versions = {each["traincheck_version"] for each in found.values() if "traincheck_version" in each}
    apart = "".join(
        f"; TrainCheck {each} in an environment of its own, over fewer updates" for each in sorted(versions)
    )
    return (
        "Time per update of an unmodified script under each tool that looks for silent bugs, as a ratio to the bare "
        f"script's within a round: median and middle 80 % (`watch.py`{apart}; `trueloop run` watches the first 16 "
        "updates in full, and from then on is in the steady state; all but TrainCheck take turns within one run of the "
        "script):\n\n" + table(["script", "watched by", "/ bare, wall", "/ bare, CPU time"], rows)
    )


def lint() -> str:
    """Tell what linting costs."""
    found = result("lint")["found"]
    few, many = found["peak_mib"].values()
    rows = [
        [
            f"files per second, {found['files']:,} files, {found['processes']} processes",
            f"{found['files_per_second']:,.0f}",
        ],
        ["seconds from the start to the first finding of a single file", spread(found["seconds_to_first_finding"], 3)],
        ["peak memory over an eighth of the files, and over all, in MiB", f"{few:.0f}, {many:.0f}"],
    ]
    words = f"`trueloop lint`, {found['rules']} rules, over torch's own package (`lint.py`):\n\n" + table(
        ["", "measured"], rows
    )
    if peer := found.get("torchfix"):
        rates = peer["files_per_second_one_process"]
        rows = [[name, spread(each, 1)] for name, each in rates.items()]
        words += (
            f"\nThe same next to TorchFix {peer['version']}, over {peer['files']} of the files with one process each; "
            "it looks for other mistakes, most of them deprecated names:\n\n" + table(["", "files per second"], rows)
        )
    return words


def journal() -> str:
    """Tell what the journal of a run costs."""
    measured = result("journal")
    rows = [
        [
            f"updates of {pace}",
            spread(seen["report_us"], 1),
            f"{seen['megabytes']:.0f}",
            spread(seen["read_s"], 1),
            f"{seen['peak_mib']:.0f}",
        ]
        for pace, seen in measured["found"].items()
    ]
    head = ["", "µs per update", "MB per 10^6 updates", "seconds to read 10^6 back", "MiB to read them"]
    return "The journal of a run, by how long its updates take (`journal.py`):\n\n" + table(head, rows)


def runs() -> str:
    """Tell how long questions about many runs take."""
    found = result("runs")["found"]
    asked = [[f"`runs {question}`", spread(seconds, 2)] for question, seconds in found["seconds"].items()]
    first = [["the first question, without the index", f"{found['seconds_first_time']:.1f}"]]
    words = f"Questions about {found['runs']:,} runs, as whole processes from start to end (`runs.py`):\n\n"
    return words + table(["", "seconds"], [*asked, *first])


def room() -> str:
    """Tell what each way of making room in memory saves and costs."""
    rows = [
        [name, *(f"{seen[which] / 2**20:.1f}" for which in ("plain_bytes", "roomy_bytes")), ratio(seen["cpu_ratio"])]
        for name, seen in result("room")["found"].items()
    ]
    return (
        "Ways of making room in memory: the peak of one forward and backward pass without and with it, and CPU time as "
        "a ratio (`room.py`):\n\n" + table(["", "MiB without", "MiB with", "time"], rows)
    )


def lab() -> str:
    """Tell what the lab's page does in a second."""
    data = result("lab")
    found, many = data["found"], data["found"]["class"]
    goals = {name: f"{value:g}" for name, value in data["goals"].items()}
    rows = [[name, f"{value:.3g}", goals.get(name, "")] for name, value in found["one session"].items()]
    late = ", ".join(f"{code} {_seconds(found['findings'][code])}" for code in found["later than the goal"])
    words = (
        f"Of {len(found['findings'])} failures that can be switched on, these are named later than the goal: {late}. "
        "They are certain only once a schedule has ended, or kept weights are used.\n"
    )
    return (
        "`trueloop lab` in headless Chromium on the same machine, its simulator training at full speed (`lab.py`):\n\n"
        + table(["", "measured", "goal"], rows)
        + (f"\n{words}" if late else "")
        + f"\nWith {many['sessions']} sessions training at once, each paints "
        f"{many['painted updates/s each, median']:.1f} times a second (the slowest "
        f"{many['painted updates/s each, least']:.1f}), a question of another page is answered within "
        f"{many['answer to a question p95, ms']:.0f} ms (95th percentile), and all processes together hold "
        f"{many['memory of all processes, MiB']:.0f} MiB.\n"
    )


def _seconds(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.1f} s"


def spread(measured: dict[str, float], digits: int) -> str:
    median, low, high = (f"{measured[name]:.{digits}f}" for name in ("median", "low", "high"))
    return f"{median} ({low} to {high})"


BASE = ("torch", "numpy")


def measured_on() -> str:
    """Tell of each result when, on what and with which settings it was measured."""
    data = {path.stem: result(path.stem) for path in sorted(RESULTS.glob("*.json"))}
    machines = {name: machine(each["machine"]) for name, each in data.items()}
    one, *others = set(machines.values())
    rows = []
    for name, each in data.items():
        facts = each["machine"]
        peers = [f"{key} {value}" for key, value in facts["versions"].items() if key not in ("trueloop", *BASE)]
        when = facts["date"].replace("-", "\N{NON-BREAKING HYPHEN}")
        cells = [f"`{name}`", when, f"{facts['load_average']:.1f}", ", ".join(peers), said(each.get("settings", {}))]
        rows.append([*cells, machines[name]] if others else cells)
    where = "" if others else f" All of them on {one}."
    return (
        f"What each result was measured on, one thread each.{where} The load average is that at the end, the "
        "benchmark's own included; peers were installed in the versions named, and run as "
        "[their own documentation says](#how-it-is-measured).\n\n"
        + table(["result", "on", "load", "peers", "settings", *(["machine"] if others else [])], rows)
    )


def machine(facts: dict[str, Any]) -> str:
    """Describe what something was measured on."""
    versions = ", ".join(f"{name} {facts['versions'][name]}" for name in BASE)
    device = facts.get("device", facts["cpu"])
    return (
        f"{device}, {facts['cores']} cores, {facts['system'].partition('-')[0]}, Python {facts['python']}, {versions}"
    )


def said(settings: dict[str, Any]) -> str:
    """Write settings down in a line."""
    words = []
    for name, value in settings.items():
        inner = f"({said(value)})" if isinstance(value, dict) else f"{value:,}" if isinstance(value, int) else value
        words.append(f"{name.replace('_', ' ')} {inner}")
    return ", ".join(words)


HEADINGS = {
    "accumulation": "Accumulated updates", "overhead": "Time per update", "speed": "Whole runs, and compiled updates",
    "processes": "Two processes", "gpu": "On a GPU", "nonfinite": "A batch with a NaN", "components": "Components",
    "texts": "Programs of the lab", "resume": "Killed and resumed", "faults": "Faults", "bitflip": "One flipped bit",
    "checkpoints": "Checkpoints", "order": "The order of the data", "watch": "The sanitizer", "lint": "The linter",
    "journal": "The journal", "runs": "Questions about runs", "room": "Making room", "lab": "The lab",
}  # fmt: skip


def figures() -> str:
    parts = {
        "accumulation": accumulation,
        "overhead": overhead,
        "nonfinite": nonfinite,
        "components": components,
        "texts": texts,
        "resume": resume,
        "faults": faults,
        "bitflip": bitflip,
        "checkpoints": checkpoints,
        "order": order,
    }
    tellers = {
        "speed": fast,
        "gpu": gpu,
        "processes": processes,
        "watch": watch,
        "lint": lint,
        "journal": journal,
        "runs": runs,
        "room": room,
        "lab": lab,
    }
    parts |= {name: tell for name, tell in tellers.items() if (RESULTS / f"{name}.json").exists()}
    sections = [f"### {HEADINGS.get(name, name.capitalize())}\n\n{tell()}" for name, tell in parts.items()]
    return "\n".join([*sections, f"### Machine, versions, settings\n\n{measured_on()}"])


PEERS = {
    "raw loop": {
        "accumulation": "raw loop, loss / K", "resume": "raw loop, state_dict checkpoint",
        "bitflip": "raw loop, state_dict checkpoint", "speed": "production loop by hand, fused",
    },
    "Lightning": {"accumulation": "Lightning accumulate_grad_batches", "speed": "Lightning, barebones, fused"},
    "Accelerate": {"accumulation": "Accelerate accumulate()", "speed": "Accelerate, fused"},
    "HF Trainer": {"accumulation": "HF Trainer, model's own loss", "speed": "HF Trainer, fused"},
}  # fmt: skip
"""What each peer of README's table is called in a result, where that is not its own name."""


def readme_figures() -> str:
    """Return the table of the README: trueloop and its peers, one row per promise."""
    systems = {"trueloop": {}, **PEERS}
    off = result("accumulation")["deviation"]["SGD"]
    flips, loops = result("bitflip"), result("speed")["found"]["loops"]
    hand = PEERS["raw loop"]["speed"]

    def row(words: str, benchmark: str, cell: Callable[[str], str]) -> list[str]:
        return [words, *(cell(names.get(benchmark, system)) for system, names in systems.items())]

    resumes = result("resume")["found"]
    by_epoch = [
        each for each in PEERS if resumes[PEERS[each].get("resume", each)]["0 workers, every epoch"].get("equal")
    ]
    finite = result("nonfinite")["found"]
    rows = [
        row("error of accumulated updates on ragged batches, as a share of the weights' movement", "accumulation",
            lambda name: share(off[name]["both"]["of_movement"])),
        row("final weights after SIGKILL in mid-epoch and a resume, a checkpoint every 6 updates", "resume",
            lambda name: resumed(resumes[name]["0 workers, every 6"])),
        row(f"checkpoints with one flipped bit that load wrong weights silently, of {flips['settings']['flips']}",
            "bitflip",
            lambda name: str(flips["found"][name]["silently other weights"])),
        row("finite weights left after one batch with a NaN", "nonfinite",
            lambda name: f"{100 * finite[name]['finite']:.0f} %"),
        *(row(f"time per update of {words}, relative to the same work written by hand", "speed",
              lambda name, task=task: "1" if name == hand else ratio(loops[task][name]["wall_ratio_to"][hand]))
          for task, words in (("mlp", "a small MLP"), ("gpt", "a small GPT"))),
    ]  # fmt: skip
    versions = result("accumulation")["machine"]["versions"]
    named = ", ".join(f"{name} {versions[name]}" for name in ("torch", "lightning", "accelerate", "transformers"))
    watched = spread(result("watch")["found"]["gpt"]["systems"]["watched, steady state"]["wall_ratio_to_bare"], 3)
    tried = list(result("faults")["found"].values())
    cases, lost = sum(sum(counts.values()) for counts in tried), sum(counts["failed"] for counts in tried)
    return (
        table(["", *systems], rows)
        + f"\nEach system is used as its own documentation says, with {named}.\nAccelerate's recipe for samples of "
        "variable size and the HF Trainer's `compute_loss_func` also accumulate exactly;\nwith a checkpoint per epoch "
        f"{' and '.join(by_epoch) or 'none of them'} also resume bitwise. Times are medians with the\nmiddle 80 % of "
        f"interleaved rounds. Under `trueloop run`, an update of the small GPT takes {watched}\ntimes as long. Of "
        f"{cases:,} runs that were killed, damaged or out of disk space, {lost or 'none'} lost anything\n"
        "([faults](docs/benchmarks.md#faults)). `make bench` writes all figures from "
        "[results](docs/benchmarks.md#figures).\n"
    )


def page(text: str) -> str:
    """Return the page with its figures written again from the results."""
    return replaced(text, figures())


def readme(text: str) -> str:
    """Return the README with its table written again from the results."""
    return replaced(text, readme_figures())


def replaced(text: str, written: str) -> str:
    before, rest = text.split(BEGIN)
    return before + BEGIN + "\n" + written + "\n" + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    README.write_text(readme(README.read_text(encoding="utf-8")), encoding="utf-8")
