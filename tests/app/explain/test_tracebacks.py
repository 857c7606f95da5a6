"""Tests of parsing tracebacks of Python, notebooks, pytest, rich, srun and torchrun."""

from __future__ import annotations

import io
import runpy
import traceback
from pathlib import Path

import pytest
from rich.console import Console
from rich.panel import Panel
from rich.traceback import Traceback

from trueloop.app.explain.tracebacks import parse_errors, strip_terminal_codes
from trueloop.core.findings import SourceLocation

PLAIN = """\
epoch 1 loss 0.3
Traceback (most recent call last):
  File "/src/me/train.py", line 20, in <module>
    main()
    ~~~~^^
  File "/src/me/train.py", line 12, in main
    loss.backward()
  [Previous line repeated 3 more times]
  File "/usr/lib/python3.11/site-packages/torch/_tensor.py", line 525, in backward
    torch.autograd.backward(
RuntimeError: Trying to backward through the graph a second time
"""
SITES = (
    SourceLocation("/src/me/train.py", 20, "<module>"),
    SourceLocation("/src/me/train.py", 12, "main"),
    SourceLocation("/usr/lib/python3.11/site-packages/torch/_tensor.py", 525, "backward"),
)
WORDS = "Trying to backward through the graph a second time"


def single_error(text: str) -> tuple[str, str, tuple[SourceLocation, ...]]:
    (error,) = parse_errors(text)
    return error.type, error.message, error.frames


def prefixed(mark: str, text: str = PLAIN) -> str:
    return "".join(f"{mark}{line}\n" for line in text.splitlines())


@pytest.mark.parametrize(
    "text",
    [
        PLAIN,
        PLAIN.replace("\n", "\r\n"),
        PLAIN.replace("RuntimeError", "\x1b[1;31mRuntimeError\x1b[0m").replace("File", "\x1b[36mFile"),
        "\r 40%|####   | 4/10\r" + PLAIN,
        prefixed("2026-11-21T22:00:00.123456789Z "),
        prefixed("2026-11-21T22:00:00.123456789Z stderr F "),
        prefixed("train-1  | "),
        "\n".join("    " + line for line in PLAIN.splitlines()),
    ],
    ids=["plain", "crlf", "colours", "progress bar", "kubectl --timestamps", "cri", "compose", "indented"],
)
def test_a_python_traceback(text: str):
    assert single_error(text) == ("RuntimeError", WORDS, SITES)


def test_a_multiline_message_ends_at_an_empty_line():
    error_text = 'Error(s) in loading state_dict for Net:\n\tMissing key(s) in state_dict: "a".'
    traceback = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n'
    text = f"{traceback}RuntimeError: {error_text}\n\nbye: bye\n"
    assert single_error(text) == ("RuntimeError", error_text, (SourceLocation("a.py", 1, "<module>"),))


def test_a_type_is_split_into_module_and_name():
    text = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\ntorch.cuda.OutOfMemoryError: CUDA out of memory.'  # noqa: E501
    (error,) = parse_errors(text)
    assert (error.type, error.module, error.message) == ("OutOfMemoryError", "torch.cuda", "CUDA out of memory.")


@pytest.mark.parametrize("bare", ["KeyboardInterrupt", "StopIteration", "SystemExit: 3", "queue.Empty"])
def test_an_error_may_have_no_message(bare: str):
    (error,) = parse_errors(f'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    g()\n{bare}\n')
    assert error.type == bare.split(":", maxsplit=1)[0].rpartition(".")[2]


def chained() -> str:
    try:
        try:
            try:
                _ = {}["first"]
            except KeyError:
                raise ValueError("second") from None
        except ValueError as error:
            raise OSError("third") from error
    except OSError:
        try:
            raise TypeError("fourth")
        except TypeError:
            return traceback.format_exc()


def test_chained_errors_have_roles():
    assert [(each.type, each.message, each.role) for each in parse_errors(chained())] == [
        ("ValueError", "second", "cause"),
        ("OSError", "third", "context"),
        ("TypeError", "fourth", "raised"),
    ]


def test_the_errors_of_an_exception_group():
    try:
        raise ExceptionGroup("both", [ValueError("one"), RuntimeError("two")])
    except ExceptionGroup:
        text = traceback.format_exc()
    expected = [("ExceptionGroup", "both (2 sub-exceptions)"), ("ValueError", "one"), ("RuntimeError", "two")]
    assert [(each.type, each.message) for each in parse_errors(text)] == expected
    assert [(each.type, each.message) for each in parse_errors(GROUP)] == expected
    assert parse_errors(GROUP)[-1].message == "two"
    assert parse_errors(GROUP)[-1].frames == (SourceLocation("a.py", 7, "f"),)


GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "a.py", line 1, in <module>
  |     go()
  | ExceptionGroup: both (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "a.py", line 6, in f
    |     raise ValueError("one")
    | ValueError: one
    +---------------- 2 ----------------
    | Traceback (most recent call last):
    |   File "a.py", line 7, in f
    |     raise RuntimeError("two")
    | RuntimeError: two
    +------------------------------------
"""


def test_mixed_lines_of_ranks_are_separated_and_merged():
    first, second = prefixed("[rank0]: ").splitlines(), prefixed("[rank1]: ").splitlines()
    mixed = [line for pair in zip(first, second, strict=True) for line in pair]
    (error,) = parse_errors("\n".join(mixed))
    assert (error.message, error.ranks, error.frames) == (WORDS, (0, 1), SITES)


def test_srun_task_numbers_are_ranks_but_other_numbers_are_not():
    (error,) = parse_errors(prefixed("3: "))
    assert error.ranks == (3,)
    assert single_error(f"12: the answer\n{PLAIN}") == ("RuntimeError", WORDS, SITES)


WORKER = """\
Traceback (most recent call last):
  File "w.py", line 9, in <module>
    for x in loader: pass
  File "/x/site-packages/torch/_utils.py", line 775, in reraise
    raise exception
RuntimeError: Caught RuntimeError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/x/site-packages/torch/utils/data/_utils/worker.py", line 358, in _worker_loop
    data = fetcher.fetch(index)
  File "w.py", line 5, in __getitem__
    return torch.zeros(2) @ torch.zeros(3)
RuntimeError: inconsistent tensor size, expected tensor [2] and src [3]
"""


def test_a_worker_error_inside_its_reraised_error():
    passed_on, own = parse_errors(WORKER)
    assert passed_on.message == "Caught RuntimeError in DataLoader worker process 0."
    assert (own.role, own.message[:24], own.frames[-1]) == (
        "worker",
        "inconsistent tensor size",
        SourceLocation("w.py", 5, "__getitem__"),
    )


NOTEBOOK = """\
---------------------------------------------------------------------------
RuntimeError                              Traceback (most recent call last)
Cell In[7], line 5
      3 model = nn.Linear(4, 2)
      4 for x in loader:
----> 5     model(x)

File ~/x/site-packages/torch/nn/modules/module.py:1751, in Module._wrapped_call_impl(self, *args, **kwargs)
   1749     return self._compiled_call_impl(*args, **kwargs)
-> 1751     return self._call_impl(*args, **kwargs)

RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x3 and 4x2)
"""


def test_a_notebook_traceback():
    kind, message, frames = single_error(NOTEBOOK)
    assert (kind, message) == ("RuntimeError", "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x2)")
    assert frames[0] == SourceLocation("Cell In[7]", 5)
    assert frames[1] == SourceLocation(
        "~/x/site-packages/torch/nn/modules/module.py", 1751, "Module._wrapped_call_impl"
    )


PYTEST = """\
    def test_it():
>       train()

test_train.py:9:
_ _ _ _ _ _ _ _ _
/x/site-packages/torch/nn/modules/linear.py:134: in forward
    return F.linear(input, self.weight, self.bias)
E       RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x3 and 4x2)

/x/site-packages/torch/nn/functional.py:10: RuntimeError
=========================== short test summary info ============================
"""


def test_a_pytest_traceback():
    kind, message, frames = single_error(PYTEST)
    assert (kind, message) == ("RuntimeError", "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x2)")
    assert (frames[0], frames[-1]) == (
        SourceLocation("test_train.py", 9),
        SourceLocation("/x/site-packages/torch/nn/functional.py", 10),
    )


@pytest.mark.parametrize("width", [40, 61, 88, 400])
@pytest.mark.parametrize("folders", ["f", "f" * 9, "f" * 33, "g" * 120])
def test_rich_boxes(tmp_path: Path, folders: str, width: int):
    path = tmp_path / folders / "train.py"
    path.parent.mkdir(parents=True)
    path.write_text(f"def step_of_training():\n    raise RuntimeError({WORDS!r})\n")
    try:
        runpy.run_path(str(path))["step_of_training"]()
    except RuntimeError as error:
        shown = Traceback.from_exception(type(error), error, error.__traceback__, width=width, show_locals=True)
    console = Console(file=io.StringIO(), width=400, force_terminal=True)
    console.print(shown)
    kind, message, frames = single_error(console.file.getvalue())  # pyright: ignore[reportAttributeAccessIssue]
    assert (kind, message) == ("RuntimeError", WORDS)
    assert (frames[0].path, frames[0].function) == (__file__, "test_rich_boxes")
    assert frames[1:] == (SourceLocation(str(path), 2, "step_of_training"),)


def test_paths_with_spaces_in_rich_boxes():
    place = f"/src/my runs/{'f' * 50} and more/train.py:12 in step"
    console = Console(file=io.StringIO(), width=40)
    console.print(
        Panel(place, title="Traceback (most recent call last)", title_align="left"), "ValueError: no", sep="\n"
    )
    frames = single_error(console.file.getvalue())[2]  # pyright: ignore[reportAttributeAccessIssue]
    assert frames == (SourceLocation(place.partition(":")[0], 12, "step"),)


@pytest.mark.parametrize(
    "text",
    ["", "epoch 3: loss 0.2", "a.b: c", "Traceback (most recent call last):\n", "E  x", "trueloop: nothing was found"],
)
def test_text_without_errors(text: str):
    assert parse_errors(text) == []


def test_a_single_line():
    (error,) = parse_errors("ValueError: optimizer got an empty parameter list")
    assert (error.type, error.message, error.frames) == ("ValueError", "optimizer got an empty parameter list", ())


def test_terminal_codes_are_removed():
    assert strip_terminal_codes("\x1b[?25l\x1b]8;;http://x\x07a\x1b]8;;\x07\x1b[31mb\x1b[0m\rc\n") == "c\n"
