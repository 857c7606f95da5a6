"""A scaler or encoder is fitted again on the held-out data, instead of with the training data only.

What you see
    The validation score looks plausible, but single samples in production get other inputs than in the evaluation. Two
    equal values of training and test data become different numbers, or the same category gets another index.

Why it happens
    ``fit_transform`` computes new statistics and applies these. Called on the test set, it scales with the test set's
    own mean and deviation, and forgets those of the training set.

Fix
    Fit on the training data, and only transform the rest:

        x_train = scaler.fit_transform(x_train)
        x_test = scaler.transform(x_test)

When this is fine
    - The transformer has no ``transform`` for new data, as t-SNE.
    - Each part is standardised on its own on purpose, as some benchmarks for time series do.

How it is detected
    Only the linter finds it, from the source code: ``fit_transform`` of a scaler, encoder, imputer, vectorizer or
    projection on data that is called test or validation data, in a file that fits one on other data too.

References
    scikit-learn, "Common pitfalls", https://scikit-learn.org/stable/common_pitfalls.html
    campusx-official/100-days-of-machine-learning#75, "transformations fitted on test data",
    https://github.com/campusx-official/100-days-of-machine-learning/issues/75
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.metric_names import name_words
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Edit, Fix
from trueloop.failures.failure import Failure, Rule, Severity, changed

_HELD_OUT: Final = frozenset(("val", "valid", "validation", "test", "testing", "dev", "holdout", "ts"))
_TRANSFORMER: Final = re.compile(
    r"scal|enc(?!lo)|imput|normali[sz]er|vectori|pca|transformer|discreti|^(sc|ss|mms|le)\d?$", re.IGNORECASE
)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each fit on held-out data in a file that also fits on other data."""
    fits = [
        (call, call.func)
        for call in source.all_calls
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("fit", "fit_transform") and call.args
    ]
    others = [call for call, _ in fits if not _is_held_out(call.args[0])]
    for call, method in fits:
        if method.attr != "fit_transform" or not others or not _is_held_out(call.args[0]):
            continue
        owner = last_name(method.value) or last_name(getattr(method.value, "func", method.value))
        if _TRANSFORMER.search(owner) and not isinstance(source.parents.get(id(call)), ast.Expr):
            end = source.text.span(method)[1]
            edit = Edit(end - len("fit_transform"), end, "transform")
            is_same = any(ast.unparse(each.func).startswith(f"{ast.unparse(method.value)}.") for each in others)
            yield Hit(
                message=f"`{ast.unparse(call)}` fits `{owner}` on held-out data: it is transformed in another way than "
                "the training data. Use `transform`.",
                node=call,
                related=((others[0], "fitted on other data here"),),
                fix=Fix((edit,), safe=False, description="Only transform") if is_same else None,
            )


def _is_held_out(node: ast.expr) -> bool:
    """Return True for data that is called test or validation data, and not training data."""
    names = [last_name(each) for each in ast.walk(node) if isinstance(each, ast.Name | ast.Attribute)]
    words = {word for name in names for word in name_words(name)}
    return bool(words & _HELD_OUT) and not words & {"train", "training", "trainval"}


RULE = Rule(required_words=("fit_transform(", "test|val|dev|ts", "torch|keras|nn."), find=find)

BAD = """
import torch
from torch import nn


class StandardScaler:
    def fit(self, x):
        self.mean, self.deviation = x.mean(0), x.std(0)
        return self

    def transform(self, x):
        return (x - self.mean) / self.deviation

    def fit_transform(self, x):
        return self.fit(x).transform(x)


torch.manual_seed(0)
x = 3 + torch.rand(200, 8)
y = x.sum(1, keepdim=True)
scaler = StandardScaler()
x_train = scaler.fit_transform(x[:160])
x_test = x[160:]
x_test = scaler.fit_transform(x_test)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x_train), y[:160]).backward()
    optimizer.step()
with torch.no_grad():
    print(nn.functional.mse_loss(model(x_test), y[160:]))
"""

FAILURE = Failure(
    code="DAT021",
    title="Scaler is fitted again on held-out data",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"x_test = scaler.fit_transform(x_test)": "x_test = scaler.transform(x_test)"}),
    fix="Fit on the training data, and call transform on all other data.",
    rule=RULE,
)
