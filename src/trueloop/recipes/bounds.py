"""What a recipe's options may be, said in the words of an error."""

from __future__ import annotations

from trueloop.core.errors import InvalidConfig


def at_least(least: int, **options: int) -> None:
    """Refuse options below ``least``.

    Raises:
        InvalidConfig: naming the option and its value.
    """
    for name, value in options.items():
        if value < least:
            raise InvalidConfig(f"options.{name} is {value!r}.", fix=f"It must be at least {least}.")


def share(**options: float) -> None:
    """Refuse options outside [0, 1).

    Raises:
        InvalidConfig: naming the option and its value.
    """
    for name, value in options.items():
        if not 0 <= value < 1:
            raise InvalidConfig(f"options.{name} is {value!r}.", fix="It must be a share: 0 or more, below 1.")
