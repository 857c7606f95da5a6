"""Draw the figures of the tutorial pages from the output of the runs; page.py calls `draw`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("agg")
mpl.rcParams.update({
    "svg.hashsalt": "trueloop", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9,
    "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 9, "path.simplify_threshold": 1.0,
})  # fmt: skip

from matplotlib import pyplot as plt  # noqa: E402 - after the settings above

RIGHT, WRONG = "#2a6fbb", "#c8442f"
NUMBER = r" +(-?[\d.]+(?:e[-+]?\d+)?)"


def column(run: dict[str, Any], name: str) -> list[float]:
    """Return the numbers after a name in the printed lines of a script."""
    lines = [re.search(rf"\b{name}{NUMBER}", line) for line in run["printed"] if not line.startswith("best")]
    return [float(match[1]) for match in lines if match]


def training_losses(runs: dict[str, Any]) -> Any:
    """Draw the training losses of a correct classifier and seven broken ones."""
    names = [
        "never_cleared", "train_mode_left_on", "held_out_seen_in_training", "best_by_reference",
        "classification", "order_not_shuffled", "eval_mode_left_on", "softmax_applied_twice",
    ]  # fmt: skip
    figure, axes = plt.subplots(2, 4, figsize=(8, 3.4), sharex=True)
    for letter, name, axis in zip("ABCDEFGH", names, axes.flat, strict=True):
        losses = column(runs[name], "train loss")
        axis.plot(range(1, len(losses) + 1), losses, color="#444")
        axis.set_title(letter, loc="left", fontweight="bold")
        axis.set_ylim(bottom=0)
    for axis in axes[1]:
        axis.set_xlabel("epoch")
    for axis in axes[:, 0]:
        axis.set_ylabel("training loss")
    return figure


def broadcast(values: dict[str, Any]) -> Any:
    """Draw predicted against measured values."""
    figure, axes = plt.subplots(1, 2, figsize=(6.4, 3), sharex=True, sharey=True)
    for axis, (script, points), colour in zip(axes, values.items(), (RIGHT, WRONG), strict=True):
        measured, predicted = zip(*points, strict=True)
        axis.plot([-2, 2.5], [-2, 2.5], color="#bbb", linewidth=1)
        axis.scatter(measured, predicted, s=10, color=colour, alpha=0.7, linewidths=0)
        axis.set(title=script, xlabel="measured")
    axes[0].set_ylabel("predicted")
    return figure


def rates(runs: dict[str, Any]) -> Any:
    """Draw the learning rates of a schedule stepped per update and per micro-batch."""
    figure, axis = plt.subplots(figsize=(6.4, 2.6))
    for name, colour in (("language_model", RIGHT), ("counted_in_micro_batches", WRONG)):
        lr = column(runs[name], "lr")
        axis.plot([50 * (i + 1) for i in range(len(lr))], lr, color=colour, label=runs[name]["command"])
    axis.set(xlabel="batch", ylabel="learning rate", ylim=(0, None))
    axis.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    return figure


def digits(generated: dict[str, Any]) -> Any:
    """Draw the digits of two generators."""
    import numpy as np

    figure, axes = plt.subplots(2, 1, figsize=(6.4, 1.9))
    for axis, (script, images) in zip(axes, generated.items(), strict=True):
        axis.imshow(np.array(images).reshape(-1, 8, 8).transpose(1, 0, 2).reshape(8, -1), cmap="gray_r")
        axis.set_title(script, loc="left")
        axis.axis("off")
    return figure


def memory(memory_mib: dict[str, Any]) -> Any:
    """Draw the growth of memory of two scripts."""
    figure, axis = plt.subplots(figsize=(6.4, 2.2))
    for (script, resident_mib), colour in zip(memory_mib.items(), (RIGHT, WRONG), strict=True):
        epochs = [5 * (i + 1) for i in range(len(resident_mib))]
        axis.plot(epochs, [each - resident_mib[0] for each in resident_mib], color=colour, label=script)
    axis.set(xlabel="epoch", ylabel="memory gained (MiB)")
    axis.legend(frameon=False, loc="upper left")
    return figure


def poles(runs: dict[str, Any]) -> Any:
    """Draw how many steps the pole stays upright."""
    figure, axis = plt.subplots(figsize=(8, 2.6))
    colours = {"actor_critic": RIGHT, "parameters_missing": "#d98e2b", "discarded": WRONG, "loss_without_graph": "#777"}
    for name, colour in colours.items():
        steps = column(runs[name], "steps upright")
        updates, style = [25 * (i + 1) for i in range(len(steps))], "--" if name == "loss_without_graph" else "-"
        axis.plot(updates, steps, style, color=colour, label=runs[name]["command"])
    axis.set(xlabel="update", ylabel="steps upright", ylim=(0, 200))
    axis.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8)
    return figure


def draw(results: dict[str, Any], folder: Path) -> None:
    """Draw all figures."""
    runs, data = results["runs"], results["figure_data"]
    folder.mkdir(parents=True, exist_ok=True)
    figures = {
        "which": training_losses(runs),
        "broadcast": broadcast(data["target_broadcast"]),
        "rates": rates(runs),
        "digits": digits(data["logits_taken_for_probabilities"]),
        "memory": memory(data["graph_kept"]),
        "poles": poles(runs),
    }
    for name, figure in figures.items():
        figure.tight_layout()
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None}, facecolor="white")
        plt.close(figure)
