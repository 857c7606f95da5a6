"""Tests of explaining printed errors: every known PyTorch error, chains, codes, warnings and unknown text."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.data import default_collate

from trueloop.app.explain.explain_error import explain_text
from trueloop.failures.load import known_errors
from trueloop.failures.warning_search import WARNING_PATTERNS


def backward_twice() -> None:
    loss = torch.ones(1, requires_grad=True).exp()
    loss.backward()
    loss.backward()


def change_in_place() -> None:
    x = torch.ones(2, requires_grad=True)
    y = x.exp()
    y += 1
    y.sum().backward()


def change_leaf() -> None:
    x = torch.ones(2, requires_grad=True)
    x += 1


RAISERS: dict[str, Callable[[], object]] = {
    "backward-not-scalar": lambda: torch.ones(2, requires_grad=True).exp().backward(),
    "backward-twice": backward_twice,
    "dtype-mismatch": lambda: nn.Linear(2, 2)(torch.ones(1, 2, dtype=torch.float64)),
    "leaf-changed-in-place": change_leaf,
    "modified-in-place": change_in_place,
    "nothing-to-differentiate": lambda: torch.ones(()).backward(),
    "shape-mismatch": lambda: nn.Linear(4, 2)(torch.ones(1, 3)),
    "state-keys": lambda: nn.Linear(4, 2).load_state_dict({"a": torch.ones(1)}),
    "target-out-of-range": lambda: nn.functional.cross_entropy(torch.ones(1, 2), torch.tensor([5])),
}
MESSAGES = {
    "cuda-in-fork": "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with",
    "device-assert": "torch.AcceleratorError: CUDA error: device-side assert triggered\nCUDA kernel errors might be",
    "device-mismatch": "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, "
    "cuda:0 and cpu! (when checking argument for argument mat1 in method wrapper_CUDA_addmm)",
    "not-picklable": "AttributeError: Can't pickle local object 'main.<locals>.<lambda>'",
    "no-gpu": "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU",
    "sharing-failed": "RuntimeError: unable to write to file </torch_18692_1954506624>",
    "out-of-memory": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "worker-died": "RuntimeError: DataLoader worker (pid 77) is killed by signal: Bus error.",
}


@pytest.mark.parametrize("kind", RAISERS)
def test_a_pytorch_error_is_recognized_by_its_traceback(kind: str):
    try:
        RAISERS[kind]()
    except (RuntimeError, IndexError):
        text = traceback.format_exc()
    (matched,) = explain_text(text).errors
    assert matched.kind == kind
    assert matched.meaning.endswith(".")
    assert matched.fix
    assert matched.location is not None
    assert matched.location.path.endswith("test_explain_error.py"), "the user line, not that of PyTorch"


@pytest.mark.parametrize("kind", MESSAGES)
def test_a_message_alone_is_recognized(kind: str):
    assert [matched.kind for matched in explain_text(MESSAGES[kind]).errors] == [kind]
    assert [matched.kind for matched in explain_text(MESSAGES[kind].partition(": ")[2]).errors] == [kind], (
        "without its type"
    )
    logged = f"2026-11-21 22:00:00,123 ERROR trainer: failed: {MESSAGES[kind].partition(': ')[2]}"
    assert [matched.kind for matched in explain_text(logged).errors] == [kind], "in a log line"


@pytest.mark.parametrize(
    ("raising", "meaning", "fix"),
    [
        (lambda: nn.Linear(4, 2)(torch.ones(2, 3)), "The input has 3 features, but the layer expects 4", "=3"),
        (lambda: nn.Conv2d(3, 1, 2)(torch.ones(2, 1, 8, 8)), "expects 3 channels, but the input of shape (2, 1", "=1"),
        (lambda: nn.functional.cross_entropy(torch.ones(6, 2), torch.zeros(2).long()), "6 predictions for 2", "flat"),
        (lambda: default_collate([torch.ones(2, 3), torch.ones(4)]), "different shapes: (2, 3) and (4)", "collate_fn"),
    ],
)
def test_the_meaning_has_the_numbers_of_the_message(raising: Callable[[], object], meaning: str, fix: str):
    try:
        raising()
    except (RuntimeError, ValueError):
        text = traceback.format_exc()
    (matched,) = explain_text(text).errors
    assert meaning in matched.meaning
    assert fix in matched.fix


def test_every_known_error_is_tested():
    assert {*RAISERS, *MESSAGES} == set(known_errors())


def test_a_traceback_says_nothing_about_the_first_update():
    (matched,) = explain_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.").errors
    assert "2.00 GiB were requested" in matched.meaning
    assert "first update" not in matched.meaning


CHAIN = """\
Traceback (most recent call last):
  File "train.py", line 5, in <module>
    model(x)
  File "/x/site-packages/torch/nn/modules/linear.py", line 134, in forward
    return F.linear(input, self.weight, self.bias)
RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x3 and 4x2)

{link}:

Traceback (most recent call last):
  File "train.py", line 9, in <module>
    report()
{last}
"""
CAUSE = "The above exception was the direct cause of the following exception"
CONTEXT = "During handling of the above exception, another exception occurred"


@pytest.mark.parametrize(("link", "role"), [(CAUSE, "cause"), (CONTEXT, "context")])
def test_a_known_cause_of_an_unknown_error_is_explained(link: str, role: str):
    answer = explain_text(CHAIN.format(link=link, last="ValueError: training failed"))
    (matched,) = answer.errors
    assert (matched.kind, matched.error.role, matched.location) == ("shape-mismatch", role, ("train.py", 5, "<module>"))
    assert [each.message for each in answer.unknown] == ["training failed"]


def test_the_error_that_ended_the_program_comes_first():
    answer = explain_text(CHAIN.format(link=CONTEXT, last="torch.OutOfMemoryError: CUDA out of memory. Tried"))
    assert [matched.kind for matched in answer.errors] == ["out-of-memory", "shape-mismatch"]


def test_a_dead_worker_is_recognized_by_its_signal():
    text = CHAIN.replace("nn/modules/linear.py", "utils/data/dataloader.py").format(
        link=CAUSE, last="RuntimeError: DataLoader worker (pid(s) 77) exited unexpectedly"
    )
    text = text.replace(
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x3 and 4x2)",
        "RuntimeError: DataLoader worker (pid 77) is killed by signal: Bus error. It is possible that",
    ).replace(
        "    report()\n", '    report()\n  File "/x/site-packages/torch/utils/data/dataloader.py", line 1, in f\n'
    )
    matched = {each.error.role: each for each in explain_text(text).errors}
    assert {each.kind for each in matched.values()} == {"worker-died"}
    assert "shared memory" in matched["raised"].meaning


def test_a_message_reraised_by_another_library_is_recognized():
    (matched,) = explain_text("mine.StepError: step 3: mat1 and mat2 shapes cannot be multiplied (2x3 and 4x2)").errors
    assert (matched.kind, matched.error.type) == ("shape-mismatch", "")
    assert matched.error.message.startswith("mat1 and mat2")


def test_failures_are_found_by_code():
    answer = explain_text("trueloop: error GRD001 train.py:12: a gradient ...\n  more: EVL002, XYZ001, and ABC123")
    assert [entry.code for entry in answer.failures] == ["GRD001", "EVL002"]
    assert answer.has_known_errors


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (
            "SCH001",
            (
                "torch/optim/lr_scheduler.py:209: UserWarning: Detected call of `lr_scheduler.step()` before "
                "`optimizer.step()`. In PyTorch 1.1.0 and later, you should call them in the opposite order"
            ),
        ),
        (
            "LOS003",
            (
                "UserWarning: Using a target size (torch.Size([8])) that is different to the input size "
                "(torch.Size([8, 1])). This will likely lead to incorrect results due to broadcasting."
            ),
        ),
        ("ENV002", "UserWarning: This DataLoader will create 16 worker processes in total. Our suggested max"),
        ("MEM003", "UserWarning: None of the inputs have requires_grad=True. Gradients will be None"),
        ("PRC003", "FutureWarning: `torch.cuda.amp.GradScaler(args...)` is deprecated. Please use"),
        ("CKP003", "FutureWarning: You are using `torch.load` with `weights_only=False` (the current default value)"),
    ],
)
def test_a_pytorch_warning_leads_to_its_failure(code: str, expected: str):
    assert [entry.code for entry in explain_text(expected).failures] == [code]
    assert code in WARNING_PATTERNS.values()


def test_errors_of_trueloop_are_listed_separately():
    text = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n'
    answer = explain_text(f"{text}trueloop.core.errors.InvalidConfig: lr is -1.\nIt would climb.\nGive lr > 0.\n")
    assert [(each.type, each.message) for each in answer.trueloop_errors] == [
        ("InvalidConfig", "lr is -1.\nIt would climb.\nGive lr > 0.")
    ]
    assert not answer.unknown


def test_the_nearest_error_is_named_for_unknown_text():
    answer = explain_text("RuntimeError: the mat1 shapes cannot be multiplied with mat2")
    assert not answer.has_known_errors
    assert answer.nearest == ["shape-mismatch"]
    assert explain_text("ValueError: no such colour").nearest == []


def test_an_abort_message_is_recognized_without_traceback():
    text = "terminate called after throwing\n  what():  CUDA error: device-side assert triggered"
    assert [matched.kind for matched in explain_text(text).errors] == ["device-assert"]


def test_a_long_log_is_searched_once(monkeypatch: pytest.MonkeyPatch):
    messages: list[str] = []
    monkeypatch.setattr(
        "trueloop.app.explain.explain_error._match_error", lambda error, chain: messages.append(error.message)
    )
    explain_text("epoch 1: loss: 0.3: lr: 0.1\n" * 20_000 + "failed: CUDA out of memory. Tried to allocate 1.00 GiB")
    assert messages == ["CUDA out of memory. Tried to allocate 1.00 GiB"]


def test_json_has_all_fields():
    record = explain_text(CHAIN.format(link=CAUSE, last="ValueError: see GRD001")).to_json()
    assert (record["errors"][0]["kind"], record["errors"][0]["location"]["line"]) == ("shape-mismatch", 5)
    assert [each["code"] for each in record["failures"]] == ["GRD001"]
    assert record["unknown"] == [{"type": "ValueError", "message": "see GRD001"}]
    assert set(record) == {"errors", "failures", "trueloop_errors", "unknown", "nearest"}
