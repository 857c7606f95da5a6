"""Pytest fixtures: ``trueloop_watch`` fails a test whose training has a silent failure, ``trueloop_verify`` proves.

pytest loads this file in every run wherever trueloop is installed, so imports happen only within the fixtures.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from trueloop.app.sanitizer.watch import WatchSession


@pytest.fixture
def trueloop_watch() -> Generator[WatchSession]:
    """Watch the training in this test, and fail the test on a warning or error."""
    from trueloop.app.sanitizer.watch import watch

    session = watch()
    yield session
    session.stop()


@pytest.fixture
def trueloop_verify() -> Callable[..., Any]:
    """Run proofs on a model and its loop, and fail the test with the evidence of those that do not hold.

    ``trueloop_verify(model, loss=..., batch=..., select=["overfits-one-batch"])``; takes what a
    ``trueloop.verify.ProofTarget`` consists of, and returns the list of evidence.
    """

    def verify(model: Any, *, select: Any = (), ignore: Any = (), **subject: Any) -> Any:
        __tracebackhide__ = True
        from trueloop.verify import prove

        found = prove({"model": model, **subject} if subject else model, select=select, ignore=ignore)
        failed = [each for each in found if not each.ok]
        if failed:
            pytest.fail("\n".join(map(repr, failed)), pytrace=False)
        return found

    return verify


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """Check after the test's own assertions, as part of the call: in a fixture's teardown it would be an error."""
    session: WatchSession | None = None
    try:
        result = yield
    except Exception as error:
        session = pyfuncitem.funcargs.get("trueloop_watch")  # pyright: ignore[reportAssignmentType]
        if session is not None and session.report_error(error):
            pyfuncitem.add_report_section("call", "trueloop", str(session))
        raise
    session = pyfuncitem.funcargs.get("trueloop_watch")  # pyright: ignore[reportAssignmentType]
    if session is not None:
        session.stop()
        if not session.ok:
            pytest.fail(str(session), pytrace=False)
    return result
