"""In knowledge distillation only the student's outputs are divided by the temperature.

What you see
    The student learns from its teacher, but gets worse than with labels alone, and the best temperature seems to be 1.

Why it happens
    The temperature softens both distributions, so that they agree where both models agree. If the teacher's are not
    softened, the student has to give outputs that are larger by the factor of the temperature, and the small
    probabilities that carry the teacher's knowledge stay near 0.

Fix
    Divide both by the same temperature:

        loss = F.kl_div(
            F.log_softmax(student_logits / T, dim=1), F.softmax(teacher_logits / T, dim=1), reduction="batchmean"
        ) * T * T

When this is fine
    - Only the target is divided by a number, below 1, to sharpen it, as in semi-supervised learning.
    - The target was softened before it was stored.

How it is detected
    Only the linter finds it: a ``kl_div`` whose input is the ``log_softmax`` of a quotient by a temperature, while its
    target is the ``softmax`` of scores called after a teacher, which nothing divides.

References
    Hinton et al., 2015, "Distilling the Knowledge in a Neural Network", https://arxiv.org/abs/1503.02531
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix
from trueloop.failures.failure import Failure, Rule, Severity, changed

_TEACHER: Final = re.compile(r"(?i)teach|(^|_)t(_?(logits?|out|outputs?|scores))?$|soft_?target|expert|big")
_SCALES: Final = re.compile(r"(?i)^(t|temp|temperature|tau|temperatur)$|temp")


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each KL divergence of a student with a temperature from a teacher without one."""
    for call in source.all_calls:
        is_kl = last_name(call.func) in ("kl_div", "KLDivLoss") or re.search(r"(?i)kl|kd|distil", last_name(call.func))
        if not is_kl or len(call.args) < 2:
            continue
        student = _scores(source, call.args[0], "log_softmax", "LogSoftmax")
        teacher = _scores(source, call.args[1], "softmax", "Softmax")
        if student is None or teacher is None or not isinstance(student, ast.BinOp):
            continue
        temperature = student.right if isinstance(student.op, ast.Div) else None
        if temperature is None or not _is_temperature(source, temperature) or not _is_of_teacher(source, teacher):
            continue
        edit = source.text.replace(teacher, f"{ast.unparse(teacher)} / {ast.unparse(temperature)}")
        is_plain = isinstance(teacher, ast.Name | ast.Attribute | ast.Call)
        yield Hit(
            message=f"The student's outputs are divided by the temperature `{ast.unparse(temperature)}`, but those of "
            f"the teacher, `{ast.unparse(teacher)}`, are not.",
            node=teacher,
            related=((student, "the student's"),),
            fix=Fix((edit,), safe=False, description="Divide the teacher's outputs, too") if is_plain else None,
        )


def _scores(source: SourceFile, node: ast.expr, *functions: str) -> ast.expr | None:
    """Return x of ``softmax(x, 1)`` or ``x.softmax(1)``; None for other values."""
    for value in origins(source, node):
        match value:
            case ast.Call(func=ast.Call(func=made), args=[inner]) if last_name(made) in functions:
                return inner
            case ast.Call(func=ast.Attribute(attr=name, value=owner), args=args) if name in functions:
                is_function = last_name(owner) in ("torch", "F", "functional")
                return args[0] if is_function and args else owner
            case ast.Call(func=ast.Name(id=name), args=[inner, *_]) if name in functions:
                return inner
            case _:
                pass
    return None


def _is_temperature(source: SourceFile, node: ast.expr) -> bool:
    """Return True for a number above 1, or a variable called temperature."""
    numbers = [each.value for each in origins(source, node) if isinstance(each, ast.Constant)]
    if any(isinstance(each, int | float) for each in numbers):
        return all(isinstance(each, int | float) and each > 1 for each in numbers)
    return bool(_SCALES.search(last_name(node)))


def _is_of_teacher(source: SourceFile, node: ast.expr) -> bool:
    """Return True for scores of a teacher that nothing has divided, multiplied or stored before."""
    values = list(origins(source, node))
    if any(isinstance(each, ast.BinOp | ast.Subscript) for each in values):
        return False
    names = [last_name(each.func) if isinstance(each, ast.Call) else last_name(each) for each in (node, *values)]
    return any(_TEACHER.search(each) for each in names)


RULE: Final = Rule(required_words=("log_softmax|LogSoftmax", "kl_div|KLDivLoss", "/"), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(200, 8)
teacher = nn.Linear(8, 3)
student = nn.Linear(8, 3)
optimizer = torch.optim.Adam(student.parameters(), lr=0.01)
temperature = 4.0
for step in range(20):
    with torch.no_grad():
        target = torch.softmax(teacher(x), dim=1)
    log_probabilities = torch.log_softmax(student(x) / temperature, dim=1)
    loss = nn.functional.kl_div(log_probabilities, target, reduction="batchmean")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="LOS047",
    title="The teacher's outputs are not divided by the temperature",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"teacher(x)": "teacher(x) / temperature"}),
    fix="Divide the outputs of the teacher and of the student by the same temperature.",
    rule=RULE,
)
