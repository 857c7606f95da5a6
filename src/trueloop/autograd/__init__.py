"""`trueloop.autograd`: tools to inspect the autograd graph, and to change what backward computes and stores.

Stable functions of logits, straight-through estimators, reversed and scaled gradients, freezing during a run, detached
state, several losses, chunked cross-entropy for a large vocabulary, gradient checkpointing, and the graph of a loss.
Everything works on plain torch models and loops.
"""

from trueloop.autograd.cross_entropy import chunked_cross_entropy
from trueloop.autograd.freezing import FreezeResult, freeze, thaw
from trueloop.autograd.gradient_surgery import Combined, combine
from trueloop.autograd.gradients import detach, reverse_gradient, scale_gradient
from trueloop.autograd.gradnorm import Balance, GradNorm
from trueloop.autograd.graph import Graph, inspect, record_modules
from trueloop.autograd.graph_svg import picture
from trueloop.autograd.graph_text import tree
from trueloop.autograd.recompute import Recomputed, recompute
from trueloop.autograd.several_losses import backward, gradients
from trueloop.autograd.stable_logs import log1mexp, log_sigmoid, softplus
from trueloop.autograd.stable_softmax import entropy, log_softmax, log_sum_exp, softmax
from trueloop.autograd.straight_through import fake_quantise, one_hot_through, round_through, sign_through

__all__ = [
    "Balance",
    "Combined",
    "FreezeResult",
    "GradNorm",
    "Graph",
    "Recomputed",
    "backward",
    "chunked_cross_entropy",
    "combine",
    "detach",
    "entropy",
    "fake_quantise",
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
    "record_modules",
    "reverse_gradient",
    "round_through",
    "scale_gradient",
    "sign_through",
    "softmax",
    "softplus",
    "thaw",
    "tree",
]
