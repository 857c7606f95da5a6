"""Types of command-line options shared by the commands."""

from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Parameter, Token


def read_whole_number(_type: Any, tokens: Sequence[Token]) -> int:
    """Convert one word to an int without rounding; by default, cyclopts rounds 3.5 to 4.

    Raises:
        ValueError: the word is not a whole number; cyclopts converts this to a message that names the option.
    """
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"{tokens[0].value!r} is not a whole number.") from None


Count = Annotated[int, Parameter(converter=read_whole_number)]
Flag = Annotated[bool, Parameter(negative="")]  # a flag without a --no-... counterpart
