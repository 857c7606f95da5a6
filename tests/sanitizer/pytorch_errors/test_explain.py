"""Explanations of errors: errors of PyTorch only, without references to objects, and robust against own errors."""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Mapping

import pytest
import torch
from torch import nn

from trueloop.core.findings import ExplainedError, Report
from trueloop.failures.load import known_errors
from trueloop.failures.pytorch_error import Explanation, KnownError, RaisedError
from trueloop.sanitizer.watch import Watch


def report_of(error: BaseException, known: Mapping[str, KnownError] | None = None) -> Report:
    watch = Watch([], errors=known_errors() if known is None else known)
    with watch:
        watch.report_error(error)
    return watch.report()


def caught(program: object) -> BaseException:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - each test checks the type
        program()  # pyright: ignore[reportCallIssue]
    return raised.value


def misfit() -> None:
    torch.ones(2, 3) @ torch.ones(2, 3)


def test_a_pytorch_error_as_the_cause_of_another():
    def program() -> None:
        try:
            misfit()
        except RuntimeError as error:
            raise ValueError("the training failed") from error

    explained = report_of(caught(program)).error
    assert explained is not None
    assert (explained.kind, explained.type) == ("shape-mismatch", "RuntimeError")


def test_an_error_being_handled_is_no_cause():
    def program() -> None:
        try:
            misfit()
        except RuntimeError:
            {}["missing"]

    assert report_of(caught(program)).error is None


def test_a_handled_error_is_not_reported():
    with Watch([], errors=known_errors()) as watch, pytest.raises(RuntimeError, match="mat1"):
        misfit()
    assert watch.report().error is None


def test_a_user_class_is_not_a_pytorch_class():
    class Own(RuntimeError):
        pass

    Own.__name__ = "RuntimeError"

    def program() -> None:
        raise Own("mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)")

    assert report_of(caught(program)).error is None


def test_no_object_of_the_program_is_kept_alive():
    def program() -> list[weakref.ref[nn.Module]]:
        model = nn.Linear(4, 1)
        refs = [weakref.ref(model)]
        watch = Watch([], errors=known_errors())
        try:
            with watch:
                try:
                    model(torch.ones(2, 5))
                except RuntimeError as error:
                    watch.report_error(error)
                    raise
        except RuntimeError:
            assert watch.report().error is not None
        del model
        gc.collect()
        return [ref for ref in refs if ref() is not None]

    assert program() == []


def test_an_objects_own_methods_are_not_called():
    class Loud:
        @property
        def weight(self) -> torch.Tensor:
            raise AssertionError("called")

        def __repr__(self) -> str:
            raise AssertionError("called")

        def __eq__(self, other: object) -> bool:
            raise AssertionError("called")

        __hash__ = object.__hash__

    class Fused(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: object, types: object, args: object = (), kwargs: object = None) -> object:
            if "__get__" in getattr(func, "__name__", ""):
                raise AssertionError("called")
            return super().__torch_function__(func, types, args, kwargs or {})

    def program() -> None:
        loud, x = Loud(), torch.ones(2, 3).as_subclass(Fused)
        assert loud is not None
        x @ torch.ones(2, 3)

    report = report_of(caught(program))
    assert report.error is not None
    assert "has the shape (2, 3)" in report.error.meaning
    assert not report.problems


def test_a_failing_entry_is_an_internal_problem():
    def explain(raised: RaisedError, match: re.Match[str]) -> Explanation:
        raise LookupError("a fault")

    known = {
        "broken": KnownError(
            title="", exception_types=frozenset({"RuntimeError"}), message_patterns=("mat1",), explain=explain
        )
    }
    report = report_of(caught(misfit), known)
    assert report.error is None
    assert report.problems == ("the error could not be explained: LookupError: a fault",)


def test_an_entry_may_decline_an_error():
    other = KnownError(
        title="",
        exception_types=frozenset({"RuntimeError"}),
        message_patterns=("mat1",),
        explain=lambda raised, match: None,
    )
    explained = report_of(caught(misfit), {"other": other, **known_errors()}).error
    assert explained is not None
    assert explained.kind == "shape-mismatch"


def test_pytorch_messages_are_shortened_by_sentences():
    def program() -> None:
        loss = torch.ones(1, requires_grad=True).exp().sum()
        loss.backward()
        loss.backward()

    explained = report_of(caught(program)).error
    assert isinstance(explained, ExplainedError)
    assert explained.message.endswith("already been freed).")
    assert len(explained.message) < 160
