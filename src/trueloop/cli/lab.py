"""`trueloop lab`: the page that shows a training loop."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from trueloop.app.option_types import Count
from trueloop.core.errors import InvalidConfig, MissingExtra


def lab_command(
    runs: Path = Path("runs"),
    *,
    port: Count = 8765,
    browser: Annotated[bool, Parameter(negative="--no-browser")] = True,
    idle_hours: float | None = None,
) -> None:
    """See a training loop, break it, and race in the arena: a page on this machine, on real PyTorch.

    Args:
        runs: A folder of runs that the page may show.
        port: Where the page is served on 127.0.0.1; 0 takes a port that is free.
        browser: Open the page in a browser.
        idle_hours: End after so many hours without a visitor, while no script runs under `trueloop run --lab`.
    """
    if idle_hours is not None and not idle_hours > 0:
        raise InvalidConfig(f"idle_hours is {idle_hours:g}.", fix="It must be above 0.")
    try:
        from trueloop.lab.serving import bind_port, serve
    except ModuleNotFoundError as error:
        raise MissingExtra(error.name or "starlette", "lab") from None

    console = Console(soft_wrap=True)
    serve(
        bind_port(port),
        runs.absolute(),
        opened=browser,
        idle_s=None if idle_hours is None else max(idle_hours, 0.01) * 3600,
        say=lambda address: console.print(f"trueloop lab: [link={address}]{address}[/link]  (Ctrl-C ends it)"),
    )
