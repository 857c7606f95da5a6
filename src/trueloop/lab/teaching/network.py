"""The lines of a script that make its network."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from trueloop.lab.teaching.simulation import Simulation

ACTIVATIONS: Final = {
    "relu": "nn.ReLU()",
    "tanh": "nn.Tanh()",
    "sigmoid": "nn.Sigmoid()",
    "gelu": "nn.GELU()",
    "linear": "nn.Identity()",
}


def network(given: Simulation) -> str:
    """Return a class ``Network`` whose ``layers`` are the hidden ones, and ``model``, one of it."""
    members, steps = [], []
    if given.hidden:
        widths = pairwise([2, *given.hidden])
        members.append(f"self.layers = nn.ModuleList([{', '.join(f'nn.Linear({a}, {b})' for a, b in widths)}])")
        steps.append("x = self.activation(layer(x))")
        if given.batchnorm:
            norms = ", ".join(f"nn.BatchNorm1d({width})" for width in given.hidden)
            members.append(f"self.norms = nn.ModuleList([{norms}])")
            steps = ["x = self.activation(norm(layer(x)))"]
        members.append(f"self.activation = {ACTIVATIONS[given.activation]}")
        if given.dropout:
            members.append(f"self.dropout = nn.Dropout({given.dropout!r})")
            steps.append("x = self.dropout(x)")
    members.append(f"self.head = nn.Linear({[2, *given.hidden][-1]}, {given.classes})")
    head = "for layer, norm in zip(self.layers, self.norms):" if given.batchnorm else "for layer in self.layers:"
    walk = [f"        {head}", *(f"            {step}" for step in steps)] if given.hidden else []
    lines = [
        "class Network(nn.Module):",
        "    def __init__(self):",
        "        super().__init__()",
        *(f"        {member}" for member in members),
        "",
        "    def forward(self, x):",
        *walk,
        "        return self.head(x)",
        "",
        "",
        "model = Network()",
    ]
    return "\n".join(lines)
