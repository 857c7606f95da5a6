"""The pytest fixtures: ``trueloop_watch`` fails a test whose training has a silent failure, ``trueloop_verify`` proves.

pytest loads this file in every run of everybody who has installed trueloop: it imports nothing before it is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from trueloop.app.sanitizer.watch import WatchSession


@pytest.fixture
def trueloop_watch() -> Generator[WatchSession]:
    """Watch the training in this test, and fail the test on a finding of severity warning or worse."""
    from trueloop.app.sanitizer.watch import watch

    watching = watch()
    yield watching
    watching.stop()


@pytest.fixture
def trueloop_verify() -> Callable[..., Any]:
    """Prove on a model and its loop what is to hold, and fail the test with the evidence where something does not.

    ``trueloop_verify(model, loss=..., batch=..., select=["overfits-one-batch"])``; takes what a
    ``trueloop.verify.ProofTarget`` consists of, and returns the list of evidence.
    """

    def verify(model: Any, *, select: Any = (), ignore: Any = (), **subject: Any) -> Any:
        __tracebackhide__ = True
        from trueloop.verify import prove

        found = prove({"model": model, **subject} if subject else model, select=select, ignore=ignore)
        wrong = [each for each in found if not each.ok]
        if wrong:
            pytest.fail("\n".join(map(repr, wrong)), pytrace=False)
        return found

    return verify


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """Judge after the test's own assertions, as part of the test: a fixture's end would be an error, not a failure."""
    watching: WatchSession | None = None
    try:
        result = yield
    except Exception as error:
        watching = pyfuncitem.funcargs.get("trueloop_watch")  # pyright: ignore[reportAssignmentType]
        if watching is not None and watching.report_error(error):
            pyfuncitem.add_report_section("call", "trueloop", str(watching))
        raise
    watching = pyfuncitem.funcargs.get("trueloop_watch")  # pyright: ignore[reportAssignmentType]
    if watching is not None:
        watching.stop()
        if not watching.ok:
            pytest.fail(str(watching), pytrace=False)
    return result
