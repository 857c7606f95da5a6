"""Pytest fixtures: ``trueloop_watch`` fails a test that trains with a silent failure, ``trueloop_verify`` runs proofs.

pytest loads this file in every run if trueloop is installed, so the fixtures import other modules only when they run.
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
    """Run proofs on a model and its loop, and fail the test with the evidence of the proofs that do not hold.

    ``trueloop_verify(model, loss=..., batch=..., select=["overfits-one-batch"])`` takes the fields of a
    ``trueloop.verify.ProofTarget`` and returns the list of evidence.
    """

    def verify(model: Any, *, select: Any = (), ignore: Any = (), **fields: Any) -> Any:
        __tracebackhide__ = True
        from trueloop.verify import prove

        evidence = prove({"model": model, **fields} if fields else model, select=select, ignore=ignore)
        failed = [each for each in evidence if not each.ok]
        if failed:
            pytest.fail("\n".join(map(repr, failed)), pytrace=False)
        return evidence

    return verify


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """Fail the test after its own assertions, in the call phase: pytest reports a failing teardown as an error."""
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
