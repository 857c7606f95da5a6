"""`trueloop.autograd`: what backward computes and keeps, and how to have it compute something else.

Stable functions of logits, straight-through estimators, gradients reversed and scaled, freezing in the middle of a run,
state without its graph, several losses at once, cross-entropy without the logits of a large vocabulary, blocks computed
again to spare memory, and the graph behind a loss. Everything works on plain torch models and loops.
"""

from __future__ import annotations

from trueloop.engines.autograd.boundary import detach
from trueloop.engines.autograd.combine import Combined, combine
from trueloop.engines.autograd.elementwise import log1mexp, log_sigmoid, softplus
from trueloop.engines.autograd.freezing import Changed, freeze, thaw
from trueloop.engines.autograd.gradients import reverse_gradient, scale_gradient
from trueloop.engines.autograd.gradnorm import Balance, GradNorm
from trueloop.engines.autograd.graph import Graph, following, inspect
from trueloop.engines.autograd.graph_picture import picture
from trueloop.engines.autograd.graph_text import tree
from trueloop.engines.autograd.normalised import entropy, log_softmax, log_sum_exp, softmax
from trueloop.engines.autograd.through import fake_quantise, one_hot_through, round_through, sign_through
from trueloop.engines.autograd.together import backward, gradients
from trueloop.engines.train.cross_entropy import chunked_cross_entropy
from trueloop.faces.recomputing import Recomputed, recompute

__all__ = [
    "Balance",
    "Changed",
    "Combined",
    "GradNorm",
    "Graph",
    "Recomputed",
    "backward",
    "chunked_cross_entropy",
    "combine",
    "detach",
    "entropy",
    "fake_quantise",
    "following",
    "freeze",
    "gradients",
    "inspect",
    "log1mexp",
    "log_sigmoid",
    "log_softmax",
    "log_sum_exp",
    "one_hot_through",
    "picture",
    "recompute",
    "reverse_gradient",
    "round_through",
    "scale_gradient",
    "sign_through",
    "softmax",
    "softplus",
    "thaw",
    "tree",
]
