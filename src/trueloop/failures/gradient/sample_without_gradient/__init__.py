"""A sample from ``dist.sample()`` is decoded or judged by a critic, but no gradient reaches the encoder or policy.

What you see
    The reconstruction improves, because the decoder learns, but the codes carry no information: the layers that compute
    mean and deviation are trained by the KL term alone, or not at all. A policy whose actions a critic judges, as in
    soft actor-critic, follows the entropy term alone, and its return stays low.

Why it happens
    ``sample()`` of ``torch.distributions`` runs under ``torch.no_grad()``. ``rsample()`` draws the same numbers as a
    function of mean and deviation (the reparametrisation trick), so that gradients pass.

Fix
    Use ``rsample()``:

        z = torch.distributions.Normal(mu, std).rsample()
        return self.decoder(z)

When this is fine
    - The gradient is estimated from ``log_prob``, as in policy gradients: ``log_prob`` times an advantage.
    - The sampled actions are a part of the critic's own loss or of its target.
    - The sample is drawn under ``torch.no_grad()``, or only for an action or an output.
    - The distribution has no ``rsample``, as ``Categorical`` has none.

How it is detected
    Only the linter finds it, from the source code: a module draws a sample of a distribution that has ``rsample``, such
    as ``Normal``, ``Beta`` or ``MultivariateNormal``, and passes it to one of its layers, and a layer has computed the
    parameters of the distribution. Files that call ``log_prob`` are not reported, nor are fixed distributions.
    Or a network gets a sample whose location was computed, also as a result of a function or through ``tanh``, and the
    value of the network is maximised: it is a term of a loss, with a minus.

References
    torch.distributions, https://docs.pytorch.org/docs/stable/distributions.html
    Kingma and Welling, 2013, "Auto-Encoding Variational Bayes", arXiv:1312.6114
    Haarnoja et al., 2018, "Soft Actor-Critic", arXiv:1801.01290
"""

import ast
from collections.abc import Iterator
from typing import Any

from trueloop.analysis.queries.assignments import enclosing_definition
from trueloop.analysis.queries.batch_loops import assigned_in, function_of
from trueloop.analysis.queries.possible_values import is_without_gradients
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Edit, Fix, dotted_name, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity
from trueloop.failures.gradient.sample_without_gradient.of_policy import REPARAMETRISED, judged_samples


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each sample without a gradient that a layer decodes, or that a critic judges for the policy."""
    yield from _decoded(source)
    for each in judged_samples(source):
        drawn, value = ast.unparse(each.sample.func), ast.unparse(each.critic)
        yield Hit(
            message=f"`{drawn}()` has no gradient: `{value}` in the loss does not train the policy that has drawn the "
            "sample. `rsample()` has one.",
            node=each.sample,
            related=((each.critic, "the value is maximised here"),),
            fix=_fix(source, each.sample),
        )


def _decoded(source: SourceFile) -> Iterator[Hit]:
    """Yield each sample without a gradient that a module passes to one of its layers."""
    if any(last_name(each.func) in ("log_prob", "rsample") for each in source.all_calls):
        return
    for call in source.all_calls:
        if last_name(call.func) != "sample" or not isinstance(call.func, ast.Attribute) or not _in_module(source, call):
            continue
        function = function_of(source, call)
        created = call.func.value
        if isinstance(created, ast.Name):
            values = assigned_in(function, created.id)
            created = values[0] if len(values) == 1 else created
        creator = function
        if isinstance(created, ast.Call) and dotted_name(created.func).startswith("self."):
            creator, created = _return_value(source, last_name(created.func)) or (function, created)
        is_known = isinstance(created, ast.Call) and last_name(created.func) in REPARAMETRISED
        if not is_known or not _is_computed(creator, created) or is_without_gradients(source, call):
            continue
        layer = _layer(source, function, call)
        if layer is not None:
            yield Hit(
                message=f"`{ast.unparse(call.func)}()` has no gradient: nothing that `{ast.unparse(layer)}` computes "
                "from it trains the layers before the sample. `rsample()` has one.",
                node=call,
                related=((layer, "the sample is used here"),),
                fix=_fix(source, call),
            )


def _fix(source: SourceFile, call: ast.Call) -> Fix:
    end = source.text.span(call.func)[1]
    return Fix((Edit(end - len("sample"), end, "rsample"),), safe=False, description="Use rsample")


def _return_value(source: SourceFile, name: str) -> tuple[ast.FunctionDef, ast.expr] | None:
    """Return the only method of a name and the value that it returns; None unless it returns once."""
    methods = [each for each in source.nodes_of(ast.FunctionDef) if each.name == name]
    found = [each.value for method in methods for each in nodes_in(method, ast.Return)]
    return (methods[0], found[0]) if len(methods) == len(found) == 1 and found[0] is not None else None


def _in_module(source: SourceFile, node: ast.AST) -> bool:
    """Return True for code of a class with a base class that has ``Module`` in its name."""
    bases = getattr(enclosing_definition(source, node, ast.ClassDef), "bases", ())
    return any("Module" in ast.unparse(each) for each in bases)


def _is_computed(function: Any, created: Any) -> bool:
    """Return True if a layer computes a parameter of the distribution, directly or through a variable."""
    for each in (*created.args, *(keyword.value for keyword in created.keywords)):
        names = [part.id for part in nodes_in(each, ast.Name)]
        if any("self." in ast.unparse(value) for value in (each, *_values(function, names))):
            return True
        arguments = {each.arg for each in nodes_in(function.args, ast.arg)} - {"self"}
        if {"mu", "mean", "loc", "logvar", "log_var"} & arguments & set(names):
            return True
    return False


def _values(function: Any, names: list[str]) -> Iterator[ast.expr]:
    """Yield the values that a function assigns to some variables, also as parts of a tuple."""
    for each in nodes_in(function, ast.Assign):
        targets = {part.id for target in each.targets for part in nodes_in(target, ast.Name)}
        if targets & set(names):
            yield each.value


def _layer(source: SourceFile, function: Any, call: ast.Call) -> ast.Call | None:
    """Return the call of a layer that gets the sample in the same function; None if there is none."""
    parent: Any = source.parents.get(id(call))
    name = dotted_name(parent.targets[0]) if isinstance(parent, ast.Assign) else ""
    for each in nodes_in(function, ast.Call):
        if not dotted_name(each.func).startswith("self.") or not each.args:
            continue
        first = each.args[0]
        if first is call or (name and dotted_name(first) == name and each.lineno > call.lineno):
            return each
    return None


RULE = Rule(required_words=(".sample(", "Module", "def "), find=find)

SCRIPT = """
import torch
from torch import nn


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(8, 4)
        self.decoder = nn.Linear(2, 8)

    def forward(self, x):
        mu, logvar = self.encoder(x).chunk(2, dim=1)
        z = torch.distributions.Normal(mu, torch.exp(0.5 * logvar)).{sample}()
        return self.decoder(z)


torch.manual_seed(0)
x = torch.randn(128, 8)
model = Autoencoder()
print(nn.functional.mse_loss(model(x), x))
"""

FAILURE = Failure(
    code="GRD019",
    title="sample() passes no gradient to the encoder or policy",
    severity=Severity.WARNING,
    bad=SCRIPT.replace("{sample}", "sample"),
    good=SCRIPT.replace("{sample}", "rsample"),
    fix="Use rsample() where gradients should pass through the sample.",
    rule=RULE,
)
