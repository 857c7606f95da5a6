"""The compiled update: which windows take it, what it may not be asked, and what is said about it.

Inductor makes one program of a whole update (`region`) for the shape of the run's ordinary window. A window of another
shape, such as an epoch's short last one, goes through the loop uncompiled; once there have been many of those, they
share a second program, whose dimensions are open. So a run compiles twice at most, whatever its windows look like, and
the same windows are compiled again when it is resumed.

What cannot be compiled whole is named, and is trained by the loop with only its model compiled.
"""

# pyright: reportPrivateUsage=false
# ruff: noqa: SLF001

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any, Final, NamedTuple, cast

import torch
from torch import Tensor

from trueloop.training.compiled.optimizer_formulas import Formula, formula_of
from trueloop.training.compiled.step_graph import Ingredients, Stepping, make_gradient_region, make_region
from trueloop.training.objective import describe

MANY: Final = 32
"""Batches of another shape than the ordinary one, each of which a program would run, before one is compiled for these,
too: fewer would not pay for it."""
_UPDATE, _GRADIENT = "The whole update", "The gradient of a micro-batch"
_NO_COMPILER: Final = ("No working C++ compiler", "Failed to find C compiler", "InvalidCxxCompiler")
_PLACE: Final = re.compile(r'File "([^"]+)", line (\d+)')


class Told(NamedTuple):
    """Something about compiling that a person should read; see `seams.Noted`."""

    kind: str
    message: str


class Program:
    """One region under torch.compile, for one shape of window, or for those with open dimensions."""

    def __init__(self, region: Any, what: str, *, opened: bool, on_host: bool) -> None:
        self.what, self.opened = what, opened
        # Random numbers as the loop draws them. The C++ wrapper saves Python's way from kernel to kernel, of which a
        # small model's update consists. (dynamic=False would cost 8 µs per call, and is not needed: shapes are told
        # apart before, and torch's guards check them once more: asserting them in the program costs 5 µs.)
        options: dict[str, Any] = {
            "fallback_random": True, "cpp_wrapper": on_host, "size_asserts": False, "alignment_asserts": False,
        }  # fmt: skip
        self.run: Any = torch.compile(region, fullgraph=True, options=options)
        self.compiled = False
        self.draws = True
        """It may draw random numbers on the host; known once it has run."""


class WholeUpdate:
    """Compiled programs of a run: whole updates of one micro-batch each, and gradients where a window has several.

    Args:
        made_of: everything that an update turns.
        optimizer: over the parameters; its state is read and written.
        refused: why nothing can be compiled whole here, where that is known beforehand.
    """

    def __init__(self, made_of: Ingredients, optimizer: torch.optim.Optimizer, refused: str | None = None) -> None:
        self._of = made_of
        self._optimizer = optimizer
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._device = self.parameters[0].device
        self._on_host = self._device.type == "cpu"
        self._told: list[Told] = []
        self._regular = ""  # the ordinary window in words, as a checkpoint keeps it
        self._shapes: Any = None  # the same as `shapes_of` has it
        self._others = 0
        self._held: Any = None
        self._programs: dict[tuple[str, bool], Program] = {}
        self._steppings: list[Stepping] = []
        self._numbers = torch.zeros(0)
        self._rows: Any = None
        self.gave_up = False
        """The loop takes every window."""
        self.lacks_compiler = False
        """Not even the model can be compiled."""
        if why := refused or _refusal(made_of, optimizer):
            self._give_up(why)

    def update_program(self, batch: Any) -> Program | None:
        """Return the program for a window that consists of this batch; None where the loop has to take it.

        Cost: a walk over the batch; where the program is new, its first call compiles it.
        """
        if self.gave_up or not self._ready():
            return None
        opened = self._opened(batch)
        return None if opened is None else self._program(_UPDATE, opened=opened)

    def gradient_program(self, batch: Any) -> Program | None:
        """Return the program for one micro-batch of several in a window; None where it has to run uncompiled."""
        if self.gave_up:
            return None
        opened = self._opened(batch)
        return None if opened is None else self._program(_GRADIENT, opened=opened)

    def take_update(self, program: Program, batch: Any) -> Tensor | None:
        """Take one update; see `region.Region` for what it returns, and `call` for the rest."""
        return self.call(program, batch, self._settings())

    def call(self, program: Program, batch: Any, *more: Tensor) -> Any:
        """Run a program, compiling it where it has not been.

        Returns:
            None where it turned out that it cannot be compiled; nothing has changed then.

        Raises:
            Exception: what torch raises about the batch itself.
        """
        if program.compiled:
            try:
                return program.run(batch, *more)
            except _errors():
                pass  # its guards ask for another compilation, which needs the patch below
        started, before = perf_counter(), torch.get_rng_state()
        try:
            with _config().patch(trace_autograd_ops=True):
                result = program.run(batch, *more)
        except _errors() as error:
            lacking = any(word in str(error) for word in _NO_COMPILER)
            self._give_up(_NEEDS_COMPILER if lacking else _words(error), lacks_compiler=lacking)
            return None
        program.compiled = True
        program.draws = not torch.equal(before, torch.get_rng_state())
        seconds = perf_counter() - started
        shape = f"windows of other sizes, such as {describe(batch)}" if program.opened else describe(batch)
        self._told.append(Told("compiled", f"{program.what} is compiled for {shape}, in {seconds:.0f} s."))
        return result

    def after_loop(self) -> None:
        """Hear that the loop took a window: what it did not step has another count of updates from here on."""
        if not self.gave_up and any(p.grad is None for p in self.parameters):
            self._give_up("in some windows not every parameter receives a gradient.")

    def take(self) -> list[Told]:
        """Return what is to be told, once."""
        told, self._told = self._told, []
        return told

    def state_dict(self) -> dict[str, Any]:
        """Return which windows are compiled, so that a resumed run compiles the same ones."""
        return {"regular": self._regular, "others": self._others}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up the choice of an earlier process."""
        self._regular, self._others, self._shapes = state["regular"], state["others"], None

    def _give_up(self, why: str, *, lacks_compiler: bool = False) -> None:
        self.gave_up, self.lacks_compiler = True, lacks_compiler
        self._programs.clear()
        rest = "Nothing is compiled." if lacks_compiler else "Only the model is compiled."
        self._told.append(Told("compiled_in_part", f"The update is not compiled as a whole: {why} {rest}"))

    def _settings(self) -> Tensor:
        """The numbers of every group, (groups, settings) in float64, on the device."""
        groups = _groups(self._optimizer)
        rows = [each.formula.settings(group) for each, group in zip(self._steppings, groups, strict=True)]
        if self._on_host:
            self._rows[:] = rows
            return self._numbers
        return torch.tensor(rows, dtype=torch.float64).to(self._device, non_blocking=True)

    def _ready(self) -> bool:
        """True once the optimizer has made its state, in an update that the loop took."""
        state = cast("dict[Any, dict[str, Any]]", self._optimizer.state)
        groups = _groups(self._optimizer)
        if self._held is not None and state.get(groups[0]["params"][0]) is self._held:
            return True
        self._programs.clear()  # made over tensors that a loaded state has replaced
        steppings: list[Stepping] = []
        held: list[dict[str, Tensor | None]] = []
        for group in groups:
            formula = cast("Formula", formula_of(self._optimizer, group))
            names = ("step", *formula.state) if formula.counts else formula.state
            states = [{name: state[p].get(name) for name in names} for p in group["params"]]
            steppings.append(Stepping(formula, group["params"], cast("list[dict[str, Tensor]]", states)))
            held += states
        lacking = sum(any(value is None for value in kept.values()) for kept in held)
        if lacking:
            if lacking < len(held):
                self._give_up(f"{lacking} of {len(held)} parameters have received no gradient yet.")
            return False
        for each in steppings:
            if each.formula.counts and len(set(torch.stack([state["step"] for state in each.states]).tolist())) > 1:
                self._give_up("its parameters have not all been updated equally often.")
                return False
        self._steppings, self._held = steppings, state[groups[0]["params"][0]]
        self._numbers = torch.zeros(len(groups), len(steppings[0].formula.settings(groups[0])), dtype=torch.float64)
        self._rows = self._numbers.numpy()
        return True

    def _opened(self, batch: Any) -> bool | None:
        """Which program takes this batch: the ordinary one, the one with open dimensions, or (None) neither."""
        shapes = shapes_of(batch)
        if self._shapes is None:
            here = describe(batch)
            self._regular = self._regular or here
            self._shapes = shapes if here == self._regular else None
        if shapes == self._shapes:
            return False
        self._others += 1
        if self._others <= MANY or self._shapes is None:
            return None
        differing = list(_differing(batch, shapes, self._shapes))
        if any(dimension is None for _, dimension in differing):
            return None
        for tensor, dimension in differing:
            torch._dynamo.maybe_mark_dynamic(tensor, dimension)
        return True

    def _program(self, what: str, *, opened: bool) -> Program:
        if (what, opened) not in self._programs:
            of = self._of
            region = make_region(of, self._steppings) if what == _UPDATE else make_gradient_region(of, self.parameters)
            self._programs[what, opened] = Program(region, what, opened=opened, on_host=self._on_host)
        return self._programs[what, opened]


def shapes_of(batch: Any) -> Any:
    """Shape and dtype of every tensor in a batch, nested as it is; of anything else, its type."""
    if isinstance(batch, Tensor):
        return batch.shape, batch.dtype
    if isinstance(batch, Mapping):
        return {key: shapes_of(value) for key, value in cast("Mapping[Any, Any]", batch).items()}
    if isinstance(batch, (tuple, list)):
        return [shapes_of(value) for value in cast("Sequence[Any]", batch)]
    return type(batch)


def _differing(batch: Any, here: Any, ordinary: Any) -> Iterator[tuple[Any, int | None]]:
    """Yield (tensor, dimension) where a batch has another size; a dimension of None where more differs than a size.

    Sizes of 0 and 1 are more: torch compiles for them apart.
    """
    if here == ordinary:
        return
    if isinstance(batch, Tensor) and isinstance(ordinary, tuple):
        shape, dtype = cast("tuple[torch.Size, torch.dtype]", ordinary)
        if batch.dtype != dtype or batch.dim() != len(shape):
            yield batch, None
            return
        for dimension, (mine, its) in enumerate(zip(batch.shape, shape, strict=True)):
            if mine != its:
                yield batch, dimension if mine > 1 else None
    elif isinstance(batch, Mapping) and isinstance(ordinary, dict) and here.keys() == cast("Any", ordinary).keys():
        for key, value in cast("Mapping[Any, Any]", batch).items():
            yield from _differing(value, here[key], ordinary[key])
    elif isinstance(batch, (tuple, list)) and isinstance(ordinary, list) and len(here) == len(cast("Any", ordinary)):
        for value, mine, its in zip(cast("Sequence[Any]", batch), here, cast("Any", ordinary), strict=True):
            yield from _differing(value, mine, its)
    else:
        yield batch, None


_NEEDS_COMPILER: Final = (
    "this machine has no C++ compiler, and torch.compile needs one (apt install g++, or name yours in CXX)."
)


def _refusal(made_of: Ingredients, optimizer: torch.optim.Optimizer) -> str | None:
    """Say what is known beforehand to have no place in a compiled update."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    kinds = {p.device.type for p in parameters}
    modules = list(made_of.model.modules())
    steps = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    checks = (
        (hasattr(_config(), "trace_autograd_ops"), f"torch {torch.__version__} cannot compile a backward pass inside."),
        (kinds <= {"cpu"} or kinds <= {"cuda"}, f"it runs on {' and '.join(sorted(kinds))}."),
        (
            all(type(p) is torch.nn.Parameter and p.is_floating_point() for p in parameters),
            "not all parameters are real and plain.",
        ),
        (
            all(formula_of(optimizer, group) for group in _groups(optimizer)),
            f"the step of {type(optimizer).__name__} with these settings is not one that trueloop knows.",
        ),
        (not any(steps), "the optimizer has hooks."),
        (not any(p._backward_hooks or p._post_accumulate_grad_hooks for p in parameters), "parameters have hooks."),
        (not any(m._backward_hooks or m._backward_pre_hooks for m in modules), "modules have backward hooks."),
    )
    return next((why for holds, why in checks if not holds), None)


def _groups(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The optimizer's groups that hold anything: of a model without biases, the group for those is empty."""
    return [group for group in optimizer.param_groups if group["params"]]


def _words(error: Exception) -> str:
    """Why torch cannot compile it, in one sentence, and the user's line where it says so."""
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    explained = [line.removeprefix("Explanation: ") for line in lines if line.startswith("Explanation: ")]
    why = (explained or lines or [type(error).__name__])[0]
    if "data-dependent" in text:
        why = "what it does depends on the value of a tensor (.item(), a comparison), which a program cannot know"
    places = _PLACE.findall(text.rpartition("from user code")[2])
    where = f" ({places[-1][0]}:{places[-1][1]})" if places else ""
    return f"{why.rstrip('.')}{where}."


def _errors() -> type[Exception]:
    from torch._dynamo.exc import TorchDynamoException

    return TorchDynamoException


def _config() -> Any:
    from torch._dynamo import config  # imported when something is compiled: it takes a second

    return config
