"""Finds statements that name a method without calling it: ``net.eval``, ``optimizer.step``."""

import ast
from collections.abc import Iterator

from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.source_text import Edit, Fix, dotted_name


def uncalled(source: SourceFile, method: str, consequence: str, *uses: str) -> Iterator[Hit]:
    """Yield the statements that consist of ``object.method`` without parentheses.

    Args:
        source: the file.
        method: name of the method.
        consequence: what does not happen: "the model stays in train mode".
        uses: methods of the same object that are called elsewhere in the file, at least one of them; "" stands for a
            call of the object itself. An object of another kind may have a property of that name. () = any object.
    """
    statements = [
        each.value
        for each in source.nodes_of(ast.Expr)
        if isinstance(each.value, ast.Attribute) and each.value.attr == method
    ]
    called = {dotted_name(each.func) for each in source.all_calls} if statements else set[str]()
    for attribute in statements:
        name = dotted_name(attribute.value)
        if name and (not uses or any(f"{name}.{use}".rstrip(".") in called for use in uses)):
            end = source.text.span(attribute)[1]
            yield Hit(
                message=f"`{name}.{method}` only names the method: without `()` it is not called, and {consequence}.",
                node=attribute,
                fix=Fix((Edit(end, end, "()"),), safe=False, description="Call the method"),
            )
