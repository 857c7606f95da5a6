"""The compiled update: choose the windows that use it, compile their programs, and report what cannot be compiled.

Inductor compiles a whole update (`step_graph`) for the shape of the run's regular window. Windows of other shapes, such
as an epoch's short last one, go through the eager loop; after many of them, a second program with dynamic dimensions is
compiled for them. So a run compiles at most twice, whatever the shapes, and a resumed run compiles for the same ones.

If the update cannot be compiled as a whole, the reason is reported, and the eager loop trains with a compiled model.
"""

# pyright: reportPrivateUsage=false
# ruff: noqa: SLF001

import re
from collections.abc import Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any, Final, NamedTuple, cast

import torch
from torch import Tensor

from trueloop.training.compiled.optimizer_formulas import Formula, formula_of
from trueloop.training.compiled.step_graph import ParamGroupStep, StepSpec, make_gradient_function, make_step_function
from trueloop.training.objective import describe_batch

MIN_OTHER_SHAPES: Final = 32
"""Number of batches of irregular shape before a program is compiled for them; for fewer, compiling does not pay."""
_UPDATE, _GRADIENT = "The whole update", "The gradient of a micro-batch"
_NO_COMPILER: Final = ("No working C++ compiler", "Failed to find C compiler", "InvalidCxxCompiler")
_CODE_LOCATION: Final = re.compile(r'File "([^"]+)", line (\d+)')


class CompileNotice(NamedTuple):
    """A message to the user about compiling; see `protocols.Notice`."""

    kind: str
    message: str


class CompiledProgram:
    """One function under torch.compile, for one shape of window or with dynamic dimensions."""

    def __init__(self, function: Any, name: str, *, dynamic: bool, on_cpu: bool) -> None:
        self.name, self.dynamic = name, dynamic
        # fallback_random draws the random numbers of the eager loop. The C++ wrapper avoids the Python between kernels,
        # which dominates a small model's update. Shapes are compared before the call, and again by torch's guards:
        # asserting them in the program would cost 5 µs per call, and dynamic=False 8 µs.
        options: dict[str, Any] = {
            "fallback_random": True, "cpp_wrapper": on_cpu, "size_asserts": False, "alignment_asserts": False,
        }  # fmt: skip
        self.run: Any = torch.compile(function, fullgraph=True, options=options)
        self.compiled = False
        self.draws_random_numbers = True
        """False if the program's first run has drawn no random numbers on the CPU."""


class CompiledStep:
    """The compiled programs of a run: updates of one micro-batch, and gradients for windows of several micro-batches.

    Args:
        spec: model, objective and settings of an update.
        optimizer: the optimizer of the parameters; its state is read and written.
        unsupported: reason why this run cannot be compiled; None if the caller knows none.
    """

    def __init__(self, spec: StepSpec, optimizer: torch.optim.Optimizer, unsupported: str | None = None) -> None:
        self._spec = spec
        self._optimizer = optimizer
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._device = self.parameters[0].device
        self._on_cpu = self._device.type == "cpu"
        self._notices: list[CompileNotice] = []
        self._regular = ""  # description of the regular window, as saved in a checkpoint
        self._shapes: Any = None  # the regular window as returned by `shapes_of`
        self._irregular_batches = 0
        self._bound_state: Any = None  # the first parameter's optimizer state to which the programs are bound
        self._programs: dict[tuple[str, bool], CompiledProgram] = {}
        self._group_steps: list[ParamGroupStep] = []
        self._table = torch.zeros(0)  # settings of every group, on the CPU
        self._table_view: Any = None  # the same memory as a NumPy array
        self.disabled = False
        """True if the eager loop runs every window."""
        self.lacks_compiler = False
        """True if there is no C++ compiler, so that not even the model can be compiled."""
        if reason := unsupported or _reason_unsupported(spec, optimizer):
            self._disable(reason)

    def update_program(self, batch: Any) -> CompiledProgram | None:
        """Return the program for a window of this one batch; None if the eager loop has to run the window.

        Cost: a walk over the batch; the first call of a new program compiles it.
        """
        if self.disabled or not self._bind_optimizer_state():
            return None
        dynamic = self._needs_dynamic_shapes(batch)
        return None if dynamic is None else self._program(_UPDATE, dynamic=dynamic)

    def gradient_program(self, batch: Any) -> CompiledProgram | None:
        """Return the program for one of several micro-batches in a window; None if it has to run uncompiled."""
        if self.disabled:
            return None
        dynamic = self._needs_dynamic_shapes(batch)
        return None if dynamic is None else self._program(_GRADIENT, dynamic=dynamic)

    def run_update(self, program: CompiledProgram, batch: Any) -> Tensor | None:
        """Run one update with `call`; see `step_graph.StepFunction` for the result."""
        return self.call(program, batch, self._settings())

    def call(self, program: CompiledProgram, batch: Any, *arguments: Tensor) -> Any:
        """Run a program, compiling it first where necessary.

        Returns:
            The program's result; None if the program cannot be compiled, and then nothing has changed.

        Raises:
            Exception: what torch raises about the batch itself.
        """
        if program.compiled:
            try:
                return program.run(batch, *arguments)
            except _compile_error_type():
                pass  # the program's guards require another compilation, which needs the patch below
        started, rng_state = perf_counter(), torch.get_rng_state()
        try:
            with _dynamo_config().patch(trace_autograd_ops=True):
                result = program.run(batch, *arguments)
        except _compile_error_type() as error:
            no_compiler = any(text in str(error) for text in _NO_COMPILER)
            self._disable(_NEEDS_COMPILER if no_compiler else _explain_compile_error(error), lacks_compiler=no_compiler)
            return None
        program.compiled = True
        program.draws_random_numbers = not torch.equal(rng_state, torch.get_rng_state())
        seconds = perf_counter() - started
        shape = f"windows of other sizes, such as {describe_batch(batch)}" if program.dynamic else describe_batch(batch)
        self._notices.append(CompileNotice("compiled", f"{program.name} is compiled for {shape}, in {seconds:.0f} s."))
        return result

    def check_eager_window(self) -> None:
        """Disable compiling if a parameter has no gradient after an eager window: the optimizer does not step it."""
        if not self.disabled and any(p.grad is None for p in self.parameters):
            self._disable("in some windows a parameter receives no gradient.")

    def drain_notices(self) -> list[CompileNotice]:
        """Return the notices since the last call."""
        notices, self._notices = self._notices, []
        return notices

    def state_dict(self) -> dict[str, Any]:
        """Return for which windows programs are compiled, so that a resumed run compiles for the same ones."""
        return {"regular": self._regular, "others": self._irregular_batches}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        self._regular, self._irregular_batches, self._shapes = state["regular"], state["others"], None

    def _disable(self, reason: str, *, lacks_compiler: bool = False) -> None:
        self.disabled, self.lacks_compiler = True, lacks_compiler
        self._programs.clear()
        result = "Nothing is compiled." if lacks_compiler else "Only the model is compiled."
        message = f"The update is not compiled as a whole: {reason} {result}"
        self._notices.append(CompileNotice("compiled_in_part", message))

    def _settings(self) -> Tensor:
        """Return the settings of every group as a float64 tensor (groups, settings) on the device."""
        groups = _groups(self._optimizer)
        rows = [each.formula.settings(group) for each, group in zip(self._group_steps, groups, strict=True)]
        if self._on_cpu:
            self._table_view[:] = rows
            return self._table
        return torch.tensor(rows, dtype=torch.float64).to(self._device, non_blocking=True)

    def _bind_optimizer_state(self) -> bool:
        """Bind the programs to the optimizer's state; return False if no eager update has created that state yet."""
        state = cast("dict[Any, dict[str, Any]]", self._optimizer.state)
        groups = _groups(self._optimizer)
        if self._bound_state is not None and state.get(groups[0]["params"][0]) is self._bound_state:
            return True
        self._programs.clear()  # they refer to tensors that a loaded state has replaced
        group_steps: list[ParamGroupStep] = []
        all_states: list[dict[str, Tensor | None]] = []
        for group in groups:
            formula = cast("Formula", formula_of(self._optimizer, group))
            names = ("step", *formula.state) if formula.counts_steps else formula.state
            states = [{name: state[p].get(name) for name in names} for p in group["params"]]
            group_steps.append(ParamGroupStep(formula, group["params"], cast("list[dict[str, Tensor]]", states)))
            all_states += states
        missing = sum(any(value is None for value in each.values()) for each in all_states)
        if missing:
            if missing < len(all_states):
                self._disable(f"{missing} of {len(all_states)} parameters have received no gradient yet.")
            return False
        for each in group_steps:
            steps = [state["step"] for state in each.states] if each.formula.counts_steps else []
            if steps and len(set(torch.stack(steps).tolist())) > 1:
                self._disable("some parameters have been updated more often than others.")
                return False
        self._group_steps, self._bound_state = group_steps, state[groups[0]["params"][0]]
        self._table = torch.zeros(len(groups), len(group_steps[0].formula.settings(groups[0])), dtype=torch.float64)
        self._table_view = self._table.numpy()
        return True

    def _needs_dynamic_shapes(self, batch: Any) -> bool | None:
        """Return False for the regular program, True for the one with dynamic dimensions, None for neither."""
        shapes = shapes_of(batch)
        if self._shapes is None:
            description = describe_batch(batch)
            self._regular = self._regular or description
            self._shapes = shapes if description == self._regular else None
        if shapes == self._shapes:
            return False
        self._irregular_batches += 1
        if self._irregular_batches <= MIN_OTHER_SHAPES or self._shapes is None:
            return None
        differing = list(_differing_dimensions(batch, shapes, self._shapes))
        if any(dimension is None for _, dimension in differing):
            return None
        for tensor, dimension in differing:
            torch._dynamo.maybe_mark_dynamic(tensor, dimension)
        return True

    def _program(self, name: str, *, dynamic: bool) -> CompiledProgram:
        if (name, dynamic) not in self._programs:
            spec = self._spec
            if name == _UPDATE:
                function = make_step_function(spec, self._group_steps)
            else:
                function = make_gradient_function(spec, self.parameters)
            self._programs[name, dynamic] = CompiledProgram(function, name, dynamic=dynamic, on_cpu=self._on_cpu)
        return self._programs[name, dynamic]


def shapes_of(batch: Any) -> Any:
    """Return the batch's structure with every tensor replaced by (shape, dtype), and other values by their type."""
    if isinstance(batch, Tensor):
        return batch.shape, batch.dtype
    if isinstance(batch, Mapping):
        return {key: shapes_of(value) for key, value in cast("Mapping[Any, Any]", batch).items()}
    if isinstance(batch, (tuple, list)):
        return [shapes_of(value) for value in cast("Sequence[Any]", batch)]
    return type(batch)


def _differing_dimensions(batch: Any, shapes: Any, regular: Any) -> Iterator[tuple[Any, int | None]]:
    """Yield (tensor, dimension) where a size differs from the regular one; dimension None if not only sizes differ.

    The dimension is also None for a size of 0 or 1, because torch specialises on these.
    """
    if shapes == regular:
        return
    if isinstance(batch, Tensor) and isinstance(regular, tuple):
        regular_shape, dtype = cast("tuple[torch.Size, torch.dtype]", regular)
        if batch.dtype != dtype or batch.dim() != len(regular_shape):
            yield batch, None
            return
        for dimension, (size, regular_size) in enumerate(zip(batch.shape, regular_shape, strict=True)):
            if size != regular_size:
                yield batch, dimension if size > 1 else None
    elif isinstance(batch, Mapping) and isinstance(regular, dict) and shapes.keys() == cast("Any", regular).keys():
        for key, value in cast("Mapping[Any, Any]", batch).items():
            yield from _differing_dimensions(value, shapes[key], regular[key])
    elif isinstance(batch, (tuple, list)) and isinstance(regular, list) and len(shapes) == len(cast("Any", regular)):
        for value, part, regular_part in zip(cast("Sequence[Any]", batch), shapes, cast("Any", regular), strict=True):
            yield from _differing_dimensions(value, part, regular_part)
    else:
        yield batch, None


_NEEDS_COMPILER: Final = (
    "this machine has no C++ compiler, and torch.compile needs one (apt install g++, or name yours in CXX)."
)


def _reason_unsupported(spec: StepSpec, optimizer: torch.optim.Optimizer) -> str | None:
    """Return why an update cannot be compiled, if that is known before compiling; else None."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    devices = {p.device.type for p in parameters}
    modules = list(spec.model.modules())
    step_hooks = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    checks = (
        (
            hasattr(_dynamo_config(), "trace_autograd_ops"),
            f"torch {torch.__version__} cannot compile a function that contains a backward pass.",
        ),
        (devices <= {"cpu"} or devices <= {"cuda"}, f"the parameters are on {' and '.join(sorted(devices))}."),
        (
            all(type(p) is torch.nn.Parameter and p.is_floating_point() for p in parameters),
            "some parameters are tensor subclasses, or not floating-point.",
        ),
        (
            all(formula_of(optimizer, group) for group in _groups(optimizer)),
            f"trueloop cannot compile the step of {type(optimizer).__name__} with these settings.",
        ),
        (not any(step_hooks), "the optimizer has hooks."),
        (not any(p._backward_hooks or p._post_accumulate_grad_hooks for p in parameters), "parameters have hooks."),
        (not any(m._backward_hooks or m._backward_pre_hooks for m in modules), "modules have backward hooks."),
    )
    return next((reason for passed, reason in checks if not passed), None)


def _groups(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return the optimizer's non-empty groups; in a model without biases, for example, the no-decay group is empty."""
    return [group for group in optimizer.param_groups if group["params"]]


def _explain_compile_error(error: Exception) -> str:
    """Explain in one sentence why torch cannot compile an update, with the user's line if the error contains it."""
    message = str(error)
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    explained = [line.removeprefix("Explanation: ") for line in lines if line.startswith("Explanation: ")]
    reason = (explained or lines or [type(error).__name__])[0]
    if "data-dependent" in message:
        reason = "its control flow depends on the value of a tensor (.item(), a comparison), unknown when compiling"
    locations = _CODE_LOCATION.findall(message.rpartition("from user code")[2])
    location = f" ({locations[-1][0]}:{locations[-1][1]})" if locations else ""
    return f"{reason.rstrip('.')}{location}."


def _compile_error_type() -> type[Exception]:
    from torch._dynamo.exc import TorchDynamoException

    return TorchDynamoException


def _dynamo_config() -> Any:
    from torch._dynamo import config  # imported when something is compiled: it takes a second

    return config
