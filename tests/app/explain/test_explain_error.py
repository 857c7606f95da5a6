"""From printed text to the catalogue's pages: for every error that torch raises, for chains, codes, warnings, none."""

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


def twice() -> None:
    loss = torch.ones(1, requires_grad=True).exp()
    loss.backward()
    loss.backward()


def changed() -> None:
    x = torch.ones(2, requires_grad=True)
    y = x.exp()
    y += 1
    y.sum().backward()


def wrong_leaf() -> None:
    x = torch.ones(2, requires_grad=True)
    x += 1


RAISING: dict[str, Callable[[], object]] = {
    "backward-not-scalar": lambda: torch.ones(2, requires_grad=True).exp().backward(),
    "backward-twice": twice,
    "dtype-mismatch": lambda: nn.Linear(2, 2)(torch.ones(1, 2, dtype=torch.float64)),
    "leaf-changed-in-place": wrong_leaf,
    "modified-in-place": changed,
    "nothing-to-differentiate": lambda: torch.ones(()).backward(),
    "shape-mismatch": lambda: nn.Linear(4, 2)(torch.ones(1, 3)),
    "state-keys": lambda: nn.Linear(4, 2).load_state_dict({"a": torch.ones(1)}),
    "target-out-of-range": lambda: nn.functional.cross_entropy(torch.ones(1, 2), torch.tensor([5])),
}
SAID = {
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


@pytest.mark.parametrize("kind", RAISING)
def test_what_torch_raises_is_known_by_its_traceback(kind: str):
    try:
        RAISING[kind]()
    except (RuntimeError, IndexError):
        text = traceback.format_exc()
    (told,) = explain_text(text).errors
    assert told.kind == kind
    assert told.meaning.endswith(".")
    assert told.fix
    assert told.location is not None
    assert told.location.path.endswith("test_explaining.py"), "the user's line, not torch's"


@pytest.mark.parametrize("kind", SAID)
def test_a_message_alone_is_known(kind: str):
    assert [told.kind for told in explain_text(SAID[kind]).errors] == [kind]
    assert [told.kind for told in explain_text(SAID[kind].partition(": ")[2]).errors] == [kind], "without its type"
    logged = f"2026-11-21 22:00:00,123 ERROR trainer: failed: {SAID[kind].partition(': ')[2]}"
    assert [told.kind for told in explain_text(logged).errors] == [kind], "in a logger's line"


@pytest.mark.parametrize(
    ("raising", "meaning", "fix"),
    [
        (lambda: nn.Linear(4, 2)(torch.ones(2, 3)), "3 numbers per row arrive at a matrix that takes 4,", "=3"),
        (lambda: nn.Conv2d(3, 1, 2)(torch.ones(2, 1, 8, 8)), "takes 3 channels, and the input of shape (2, 1, 8", "=1"),
        (lambda: nn.functional.cross_entropy(torch.ones(6, 2), torch.zeros(2).long()), "6 predictions for 2", "flat"),
        (lambda: default_collate([torch.ones(2, 3), torch.ones(4)]), "differ in shape: (2, 3) and (4)", "collate_fn"),
    ],
)  # fmt: skip
def test_the_numbers_of_a_message_are_said(raising: Callable[[], object], meaning: str, fix: str):
    try:
        raising()
    except (RuntimeError, ValueError):
        text = traceback.format_exc()
    (told,) = explain_text(text).errors
    assert meaning in told.meaning
    assert fix in told.fix


def test_every_known_error_is_tried_here():
    assert {*RAISING, *SAID} == set(known_errors())


def test_of_the_first_update_nothing_is_claimed():
    (told,) = explain_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.").errors
    assert "2.00 GiB were asked for" in told.meaning
    assert "first update" not in told.meaning


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


@pytest.mark.parametrize(("link", "how"), [(CAUSE, "cause"), (CONTEXT, "context")])
def test_where_the_last_error_is_the_programs_own_the_one_before_is_told(link: str, how: str):
    answer = explain_text(CHAIN.format(link=link, last="ValueError: training failed"))
    (told,) = answer.errors
    assert (told.kind, told.error.role, told.location) == ("shape-mismatch", how, ("train.py", 5, "<module>"))
    assert [each.message for each in answer.unknown] == ["training failed"]


def test_what_ended_the_program_comes_first():
    answer = explain_text(CHAIN.format(link=CONTEXT, last="torch.OutOfMemoryError: CUDA out of memory. Tried"))
    assert [told.kind for told in answer.errors] == ["out-of-memory", "shape-mismatch"]


def test_a_worker_that_died_is_known_by_its_signal():
    text = CHAIN.replace("nn/modules/linear.py", "utils/data/dataloader.py").format(
        link=CAUSE, last="RuntimeError: DataLoader worker (pid(s) 77) exited unexpectedly"
    )
    text = text.replace(
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x3 and 4x2)",
        "RuntimeError: DataLoader worker (pid 77) is killed by signal: Bus error. It is possible that",
    ).replace(
        "    report()\n", '    report()\n  File "/x/site-packages/torch/utils/data/dataloader.py", line 1, in f\n'
    )
    told = {each.error.role: each for each in explain_text(text).errors}
    assert {each.kind for each in told.values()} == {"worker-died"}
    assert "shared memory" in told["raised"].meaning


def test_torchs_words_are_known_also_where_an_error_of_another_library_passes_them_on():
    (told,) = explain_text("mine.StepError: step 3: mat1 and mat2 shapes cannot be multiplied (2x3 and 4x2)").errors
    assert (told.kind, told.error.type) == ("shape-mismatch", "")
    assert told.error.message.startswith("mat1 and mat2")


def test_failures_are_found_by_the_codes_that_our_messages_name():
    answer = explain_text("trueloop: error GRD001 train.py:12: a gradient ...\n  more: EVL002, XYZ001, and ABC123")
    assert [entry.code for entry in answer.failures] == ["GRD001", "EVL002"]
    assert answer.has_known_errors


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("SCH001", ("torch/optim/lr_scheduler.py:209: UserWarning: Detected call of `lr_scheduler.step()` before "
         "`optimizer.step()`. In PyTorch 1.1.0 and later, you should call them in the opposite order")),
        ("LOS003", ("UserWarning: Using a target size (torch.Size([8])) that is different to the input size "
         "(torch.Size([8, 1])). This will likely lead to incorrect results due to broadcasting.")),
        ("ENV002", "UserWarning: This DataLoader will create 16 worker processes in total. Our suggested max"),
        ("MEM003", "UserWarning: None of the inputs have requires_grad=True. Gradients will be None"),
        ("PRC003", "FutureWarning: `torch.cuda.amp.GradScaler(args...)` is deprecated. Please use"),
        ("CKP003", "FutureWarning: You are using `torch.load` with `weights_only=False` (the current default value)"),
    ],
)  # fmt: skip
def test_what_torch_only_warned_of_is_a_failure(code: str, words: str):
    assert [entry.code for entry in explain_text(words).failures] == [code]
    assert code in WARNING_PATTERNS.values()


def test_our_own_errors_say_themselves_what_to_do():
    text = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n'
    answer = explain_text(f"{text}trueloop.core.errors.InvalidConfig: lr is -1.\nIt would climb.\nGive lr > 0.\n")
    assert [(each.type, each.message) for each in answer.trueloop_errors] == [
        ("InvalidConfig", "lr is -1.\nIt would climb.\nGive lr > 0.")
    ]
    assert not answer.unknown


def test_where_nothing_is_known_the_nearest_is_named():
    answer = explain_text("RuntimeError: the mat1 shapes cannot be multiplied with mat2")
    assert not answer.has_known_errors
    assert answer.nearest == ["shape-mismatch"]
    assert explain_text("ValueError: no such colour").nearest == []


def test_what_torch_says_before_it_aborts_is_known_without_a_traceback():
    text = "terminate called after throwing\n  what():  CUDA error: device-side assert triggered"
    assert [told.kind for told in explain_text(text).errors] == ["device-assert"]


def test_a_long_log_is_searched_through_once(monkeypatch: pytest.MonkeyPatch):
    asked: list[str] = []
    monkeypatch.setattr("trueloop.app.explain.explain_error._told", lambda error, chain: asked.append(error.message))
    explain_text("epoch 1: loss: 0.3: lr: 0.1\n" * 20_000 + "failed: CUDA out of memory. Tried to allocate 1.00 GiB")
    assert asked == ["CUDA out of memory. Tried to allocate 1.00 GiB"]


def test_json_holds_all_of_it():
    record = explain_text(CHAIN.format(link=CAUSE, last="ValueError: see GRD001")).to_json()
    assert (record["errors"][0]["kind"], record["errors"][0]["site"]["line"]) == ("shape-mismatch", 5)
    assert [each["code"] for each in record["failures"]] == ["GRD001"]
    assert record["unknown"] == [{"type": "ValueError", "message": "see GRD001"}]
    assert set(record) == {"errors", "failures", "ours", "unknown", "nearest"}
