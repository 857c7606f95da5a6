"""Records, for a few updates, which operations of the program cut its graph, and which values come from behind a cut.

PyTorch passes every call of its Python functions to a function mode. A result without a graph, of inputs with one, is a
cut; whatever is computed from the result carries the cut on, through operations with and without a graph. Numbers and
arrays that leave PyTorch (``item()``, ``numpy()``) are followed by the names of variables: see `value_flow`.
"""

import linecache
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from trueloop.core.findings import CodePosition
from trueloop.tracing.events import NO_REFS, Ref, Refs
from trueloop.tracing.frame_variables import variables
from trueloop.tracing.graph_leaves import contains_operation, graph_leaves, sequence_number
from trueloop.tracing.patch import HIDDEN_FILE, hide_from_compiler
from trueloop.tracing.torch_modes import RecordingMode
from trueloop.tracing.user_location import is_user_code, user_location
from trueloop.tracing.value_flow import Span, depends_on, span_of
from trueloop.tracing.weak_id_dict import WeakIdDict

MAX_CALLS: Final = 20_000  # recorded calls; they take 0.2 s
MAX_CUTS: Final = 2_000  # recorded cuts; each reads a graph
MAX_TENSORS: Final = 64  # arguments or results of a call that are inspected
MAX_ALIASES: Final = 256  # detached tensors that are kept until the update ends
MAX_FRAMES: Final = 16
MAX_SOURCE: Final = 60  # characters of an operation's source code that a message shows
_WITHOUT_VALUES: Final = frozenset((
    "backward", "empty_like", "full_like", "grad", "grad_fn", "new_empty", "new_full", "new_ones", "new_zeros",
    "ones_like", "rand_like", "randint_like", "randn_like", "register_hook", "requires_grad_", "retain_grad", "shape",
    "size", "zeros_like",
))  # fmt: skip
"""Functions whose results do not depend on the values of their arguments."""
_OVERWRITING: Final = frozenset(("fill_", "normal_", "random_", "uniform_", "zero_"))
_EXPORTS: Final = frozenset(("__array__", "__float__", "item", "numpy", "tolist"))
_SHARING: Final = frozenset(("data", "detach", "numpy"))
"""Functions whose result shares the memory of their argument, and so does a ``Variable`` that is made from it."""
_ADDITIONS: Final = frozenset(("__radd__", "__rsub__", "add", "add_", "rsub", "stack", "sub", "sub_"))
DERIVATIVE: Final = "autograd.grad() without create_graph=True"
_WEIGHTED: Final = re.compile(r"linear|conv|matmul|mm$|lstm|gru|rnn")
"""Functions that multiply their input by weights."""
_is_compiling: Callable[[], bool] = torch.compiler.is_compiling


class Cut(NamedTuple):
    """An operation that returned a result without a graph."""

    location: CodePosition | None
    operation: str
    parameters: Refs
    """Trainable parameters that the graph of the operation's inputs reaches."""
    number: int
    """Number of earlier cuts in the same update."""
    scalar_source: int | None
    """Sequence number of the operation that made the input, if the input is a scalar."""
    has_rsample: bool = False
    """Whether ``sample()`` made the cut, of a distribution with a differentiable ``rsample()``."""


class Term(NamedTuple):
    """A number without a graph that was added to a loss."""

    location: CodePosition | None
    cut: Cut


Cuts = frozenset[Cut]
NO_CUTS: Final[Cuts] = frozenset()
NO_TERMS: Final[frozenset[Term]] = frozenset()


class CallRecorder(RecordingMode):
    """Passes each call of a PyTorch function, with its result, to a function while ``enabled``."""

    def __init__(self, record: Callable[[Any, Any, Any, Any], None]) -> None:
        super().__init__()
        self.record, self.enabled = record, True

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function, and record the call."""
        result = func(*args, **(kwargs or {}))
        if self.enabled and not self.paused and not _is_compiling():
            self.record(func, args, kwargs, result)
        return result


_intercept: Any = CallRecorder.__torch_function__
_intercept.__code__ = _intercept.__code__.replace(co_filename=HIDDEN_FILE)
hide_from_compiler(_intercept)


class CutRecorder:
    """The cuts of one update, and the tensors whose values come from behind them.

    Args:
        owned: the trainable parameters of optimizers, by id.
        inference_mode_at: returns where the program entered ``torch.inference_mode`` latest.
    """

    def __init__(self, owned: Mapping[int, Ref], inference_mode_at: Callable[[], CodePosition | None]) -> None:
        self._owned, self._inference_mode_at = owned, inference_mode_at
        self._cuts = WeakIdDict[Tensor, Cuts]()
        self._terms = WeakIdDict[Tensor, frozenset[Term]]()
        self._aliases: dict[int, tuple[Tensor, Cuts]] = {}
        """Address of a cut tensor -> the tensor, which is kept so that the address is not reused, and its cuts."""
        self._exports: dict[tuple[int, CodeType], list[tuple[Span, Cuts]]] = {}
        """Running function -> calls in which numbers or arrays left PyTorch, each with the cuts behind them."""
        self._leaves: dict[int | None, Refs] = {}
        """Sequence number of an operation -> trainable parameters that its graph reaches."""
        self._disabled_at: CodePosition | None = None
        """Where gradients were switched off, if they are off."""
        self._cut_count = self.calls = 0
        self._sample_uses: dict[CodePosition | None, list[int]] = {}
        """Line that draws a sample -> sequence numbers of the operations that multiply it by weights."""
        self._scored: set[CodePosition | None] = set()
        """Lines that draw a sample whose probability is computed, as in policy gradients."""
        self.is_deliberate = False
        """Whether a value and its own detached copy were added or subtracted, as in ``x - x.detach()``."""

    @property
    def is_exhausted(self) -> bool:
        """Whether so many calls were recorded that recording should stop."""
        return self.calls >= MAX_CALLS or self._cut_count >= MAX_CUTS

    def cuts_of(self, tensor: Tensor) -> Cuts:
        """Return the cuts from behind which the values of a tensor come."""
        known = self._cuts.get(tensor)
        if known is None and self._aliases and tensor.grad_fn is None and id(tensor) not in self._owned:
            alias = self._aliases.get(_address(tensor))
            known = None if alias is None else alias[1]
        return known or NO_CUTS

    def terms_of(self, tensor: Tensor) -> frozenset[Term]:
        """Return the numbers without a graph that were added up to a scalar."""
        return self._terms.get(tensor) or NO_TERMS

    def sampled_for(self, root: Tensor) -> Cuts:
        """Return the cuts by ``sample()`` where a network computes a loss from the sample of a network.

        The loss also has another graph to the network of the distribution, such as a KL divergence.
        """
        reached = None
        found: set[Cut] = set()
        for cut in self.cuts_of(root):
            uses = self._sample_uses.get(cut.location, ())
            if cut.has_rsample and cut.location not in self._scored and uses:
                reached = self._parameters_behind(root) if reached is None else reached
                if cut.parameters & reached and any(contains_operation([root], each) for each in uses):
                    found.add(cut)
        return frozenset(found)

    def record(self, function: Any, args: Sequence[Any], options: Mapping[str, Any] | None, result: Any) -> None:
        """Record one call of a PyTorch function."""
        self.calls += 1
        name = _name(function)
        if name == "_set_grad_enabled":
            self._on_grad_mode(bool(args[0]))
            return
        is_derivative = getattr(function, "__name__", "") == "grad"  # torch.autograd.grad, not the attribute
        if name in _WITHOUT_VALUES and not is_derivative:
            return
        inputs = _tensors((args[0] if is_derivative else args, {} if is_derivative else options))
        carried = NO_CUTS.union(*map(self.cuts_of, inputs)) if inputs else NO_CUTS
        if self._exports and not carried and self._has_values_of_unknown_origin(args, inputs):
            carried = self._exported_cuts()
        sources = [each for each in inputs if each.requires_grad]
        if name in _EXPORTS:
            self._on_export(name, carried, sources, inputs)
        elif carried or sources:
            self._on_result(name, args, result, carried, sources)

    def _on_grad_mode(self, enabled: bool) -> None:
        if enabled:
            self._disabled_at = None
        elif self._disabled_at is None:
            self._disabled_at = user_location()

    def _on_export(self, name: str, carried: Cuts, sources: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        cuts = carried | self._new_cut(name, sources)
        if not cuts:
            return
        if name in _SHARING:
            self._add_alias(inputs[0], cuts)
        for frame in _user_frames():
            span, calls = span_of(frame.f_code, frame.f_lasti), self._exports.setdefault((id(frame), frame.f_code), [])
            if span is not None and (span, cuts) not in calls[-1:]:
                calls.append((span, cuts))

    def _on_result(self, name: str, args: Sequence[Any], result: Any, carried: Cuts, sources: Sequence[Tensor]) -> None:
        outputs = _tensors(result)
        target = args[0] if args and _is_in_place(name) and isinstance(args[0], Tensor) else None
        if target is not None:
            if id(target) in self._owned:
                return
            outputs = [target] if target._base is None else [target, target._base]  # noqa: SLF001
            if name in _OVERWRITING:
                carried = NO_CUTS
        cut = NO_CUTS
        if sources and any(each.grad_fn is None for each in outputs):
            cut = self._new_cut(name, sources)
        if any(each.has_rsample for each in carried):
            self._on_sample_used(name, args, carried, outputs)
        for output in outputs:
            if output.grad_fn is not None and (name == "stack" or not output.dim()):
                self._on_sum(name, args, output)  # first, as an addition in place changes the cuts of its operand
            cuts = carried if output.grad_fn is not None else carried | cut
            if cuts or target is not None:
                self._cuts.put(output, cuts)
            if cuts and name in _SHARING:
                self._add_alias(output, cuts)

    def _on_sample_used(self, name: str, args: Sequence[Any], cuts: Cuts, outputs: Sequence[Tensor]) -> None:
        """Record whether weights multiply a sample, or whether its probability is computed."""
        tensors = _tensors(args)
        raw = [each for each in tensors if each.grad_fn is None and self.cuts_of(each)]
        for cut in cuts:
            if not cut.has_rsample:
                continue
            if _distribution_in("log_prob") is not None or (
                name.strip("_") in ("sub", "rsub")
                and raw
                and any(cut.parameters & self._parameters_behind(each) for each in tensors if each.requires_grad)
            ):
                self._scored.add(cut.location)
            elif _WEIGHTED.search(name) and raw:
                orders = [sequence_number(each.grad_fn) for each in outputs if each.grad_fn is not None]
                self._sample_uses.setdefault(cut.location, []).extend(each for each in orders if each is not None)

    def _on_sum(self, name: str, args: Sequence[Any], output: Tensor) -> None:
        """Record the terms of a scalar with a graph: those of its operands, and operands without a graph."""
        operands = list(args[0] if name == "stack" else args[:2])
        terms = NO_TERMS.union(*(self.terms_of(each) for each in operands if isinstance(each, Tensor)))
        if name in _ADDITIONS:
            for operand in operands:
                terms |= self._detached_terms(operand, [each for each in operands if each is not operand])
        if terms:
            self._terms.put(output, terms)

    def _detached_terms(self, operand: Any, others: Sequence[Any]) -> frozenset[Term]:
        if isinstance(operand, Tensor):
            cuts = NO_CUTS if operand.requires_grad or operand.dim() else self.cuts_of(operand)
            if not cuts and self._exports and not operand.requires_grad:
                cuts = self._exported_cuts()
        else:
            cuts = self._exported_cuts() if self._exports and type(operand) is float else NO_CUTS
        attached = [each for each in others if isinstance(each, Tensor) and each.requires_grad]
        if not cuts or not attached:
            return NO_TERMS
        own = cuts.difference(*map(self.cuts_of, attached))
        if any(each.operation == DERIVATIVE for each in own):  # of samples that come from behind the same cut
            cuts = own
        is_shared = any(not cuts.isdisjoint(self.cuts_of(each)) for each in attached)
        orders = [cut.scalar_source for cut in cuts if cut.scalar_source is not None]
        if is_shared or any(contains_operation(attached, order) for order in orders):
            self.is_deliberate = True
            return NO_TERMS
        return frozenset({Term(user_location(), min(cuts, key=lambda cut: cut.number))})

    def _new_cut(self, name: str, sources: Sequence[Tensor]) -> Cuts:
        """Return the cut that a call without gradients makes; none if its graph reaches no trainable parameter."""
        parameters = NO_REFS.union(*map(self._parameters_behind, sources)) if sources else NO_REFS
        if not parameters:
            return NO_CUTS
        self._cut_count += 1
        location, operation = self._describe(name)
        if name == "grad":
            operation = DERIVATIVE
        scalars = [each for each in sources if not each.dim() and each.grad_fn is not None]
        scalar = sequence_number(scalars[0].grad_fn) if scalars and name != "grad" else None
        distribution = _distribution_in("sample") if location == self._disabled_at else None
        has_rsample = distribution is not None and bool(distribution.has_rsample)
        return frozenset({Cut(location, operation, parameters, self._cut_count, scalar, has_rsample)})

    def _parameters_behind(self, source: Tensor) -> Refs:
        if source.grad_fn is None:
            ref = self._owned.get(id(source))
            return NO_REFS if ref is None else frozenset({ref})
        order = sequence_number(source.grad_fn)
        known = self._leaves.get(order)
        if known is None:
            leaves = graph_leaves([source])
            known = frozenset(self._owned[id(leaf)] for leaf in leaves if id(leaf) in self._owned)
            self._leaves[order] = known
        return known

    def _describe(self, name: str) -> tuple[CodePosition | None, str]:
        """Return the location and name of the operation that cuts the graph in the running call."""
        location = user_location()
        if torch.is_grad_enabled():
            return location, _source_of_call(location) or (".data" if name == "data" else f"{name}()")
        if _distribution_in("sample") is not None:
            return location, "sample()"
        below: FrameType | None = None
        frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
        while frame is not None:
            code = frame.f_code
            if code.co_name == "decorate_context" and below is not None and is_user_code(below.f_code):
                return CodePosition(below.f_code, 0), "@torch.no_grad()"
            below, frame = frame, frame.f_back
        if torch.is_inference_mode_enabled():
            return self._inference_mode_at() or location, "torch.inference_mode()"
        return self._disabled_at or location, "torch.no_grad()"

    def _add_alias(self, tensor: Tensor, cuts: Cuts) -> None:
        address = _address(tensor)
        if address and len(self._aliases) < MAX_ALIASES:
            self._aliases[address] = tensor.detach(), cuts

    def _has_values_of_unknown_origin(self, args: Sequence[Any], inputs: Sequence[Tensor]) -> bool:
        if any(isinstance(each, float | list | tuple) or type(each).__module__ == "numpy" for each in args):
            return True
        return any(each.grad_fn is None and id(each) not in self._owned for each in inputs)

    def _exported_cuts(self) -> Cuts:
        """Return the cuts of numbers and arrays that the running expression of the program uses."""
        frame = next(iter(_user_frames()), None)
        use = None if frame is None else span_of(frame.f_code, frame.f_lasti)
        if frame is None or use is None:
            return NO_CUTS
        exports = self._exports.get((id(frame), frame.f_code), ())
        return NO_CUTS.union(*(cuts for span, cuts in exports if depends_on(frame.f_code, use, span)))


def _distribution_in(method: str) -> Any:
    """Return the distribution of PyTorch whose method is running; None if there is none."""
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
    while frame is not None:
        code = frame.f_code
        if code.co_name == method and "torch" in code.co_filename and "distributions" in code.co_filename:
            return variables(frame).get("self")
        frame = frame.f_back
    return None


def _source_of_call(location: CodePosition | None) -> str:
    """Return the source code of a call, such as "features.detach()"; "" if it is long or unknown."""
    span = None if location is None or location.instruction < 0 else span_of(*location)
    if location is None or span is None or span.line != span.end_line or span.end_column - span.column > MAX_SOURCE:
        return ""
    line = linecache.getline(location.code.co_filename, span.line)
    return line.encode()[span.column : span.end_column].decode(errors="replace")


def _name(function: Any) -> str:
    """Return the name of a PyTorch function: "add", or "data" for the attribute."""
    name = getattr(function, "__name__", "")
    if name == "__get__":
        return getattr(getattr(function, "__self__", None), "__name__", name)
    return name


def _is_in_place(name: str) -> bool:
    return name in ("__setitem__", "__set__") or (name.endswith("_") and not name.endswith("__"))


def _tensors(nested: Any) -> list[Tensor]:
    """Return the tensors in arguments or results, also within lists, tuples and dictionaries."""
    if isinstance(nested, Tensor):
        return [nested]
    found, queue = list[Tensor](), [nested]
    while queue and len(found) < MAX_TENSORS:
        value = queue.pop()
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, dict):
            queue.extend(value.values())
        elif isinstance(value, list | tuple):
            queue.extend(value[MAX_TENSORS - 1 :: -1])
    return found


def _address(tensor: Tensor) -> int:
    """Return the address of a tensor's memory; 0 if it has none of its own."""
    if tensor.layout is not torch.strided or type(tensor) is not Tensor or tensor.is_meta:
        return 0
    return tensor.untyped_storage().data_ptr()


def _user_frames() -> list[FrameType]:
    """Return the running functions of the program, innermost first."""
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
    found: list[FrameType] = []
    while frame is not None and len(found) < MAX_FRAMES:
        if is_user_code(frame.f_code):
            found.append(frame)
        frame = frame.f_back
    return found
