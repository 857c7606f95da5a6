"""Finds schedulers that are created but never stepped, and that no line of the program could step."""

import ast
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from torch.optim.lr_scheduler import ChainedScheduler, LRScheduler, ReduceLROnPlateau, SequentialLR

from trueloop.analysis.program_files import parse_program
from trueloop.analysis.queries.optimizer_settings import sets_in_groups
from trueloop.core.findings import CodePosition
from trueloop.core.source_text import dotted_name, nodes_in, walk
from trueloop.failures.schedule.never_advanced import SchedulerNeverStepped
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import Event
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import OptimizerState, ProgramState
from trueloop.tracing.running_code import in_notebook, is_library_frame, program_stack, user_files, user_modules
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import is_user_code, user_location

MAX_OPTIMIZERS: Final = 128  # optimizers whose schedulers are tracked; a hyper-parameter sweep creates more

MIN_OTHERS_STEPPED: Final = 3  # steps of another optimizer's scheduler, while that optimizer made none

CONSTRUCTORS: Final = (LRScheduler, ReduceLROnPlateau, SequentialLR, ChainedScheduler)
"""Classes with constructors of their own; all other classes call that of LRScheduler."""

_NON_SCHEDULER_ATTRIBUTES: Final = frozenset((
    "zero_grad", "param_groups", "add_param_group", "scale", "unscale_", "get_scale", "reset",
))  # fmt: skip
"""Attributes that PyTorch schedulers lack; optimizers, scalers and environments, which have ``step`` too, have them."""
_LOOKUPS: Final = frozenset(("getattr", "methodcaller", "attrgetter"))
_CONDITIONS: Final = (ast.If, ast.IfExp, ast.Match)
_OFF: Final = frozenset(("none", "off", "never", "constant", "fixed", "no", "disabled"))
"""Texts that switch a schedule off."""
_SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(slots=True)
class _CreatedScheduler:
    """One scheduler, and the state of the program when it was created."""

    scheduler: weakref.ref[Any]
    steps: int
    event: SchedulerNeverStepped
    """The event to emit if the scheduler is never stepped."""
    frames: list[int]
    files: set[str]
    run_by_library: bool | None
    """Whether a library runs the loop that steps the optimizer; None = not checked yet."""


@dataclass(slots=True)
class _OptimizerSchedulers:
    """The schedulers of one optimizer."""

    state: OptimizerState
    created: list[_CreatedScheduler] = field(default_factory=list[_CreatedScheduler])
    """Empty if ``stepped``."""
    stepped: bool = False
    """Whether one of the schedulers was stepped."""
    steps: int = 0
    """Number of steps of the optimizer when one of the schedulers, or one of another optimizer, stepped last."""
    others_stepped: int = 0
    """How often the scheduler of an optimizer that had not stepped was stepped instead, after steps of this one."""
    instead_at: CodePosition | None = None
    """The line that did this last."""


class UnsteppedSchedules(Hook):
    """Tracks which schedulers are created and stepped; emits `SchedulerNeverStepped` when the watch ends.

    The event is not emitted if a library runs the loop and may step the scheduler, in a notebook, whose next cell may
    step it, or if the program sets learning rates itself or creates several schedulers for one optimizer.

    Cost: 10 us for each new scheduler; at the end, if one was never stepped, 5 ms for each file of the program.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (SchedulerNeverStepped,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._by_optimizer: dict[int, _OptimizerSchedulers] = {}
        subject = "schedulers that are never stepped"
        self._record_created = stream.isolated(subject, self._on_created)
        self._record_step = stream.isolated(subject, self._on_stepped)
        self._check_caller = stream.isolated(subject, self._on_periodic_check)
        stream.on_detach.append(stream.isolated(subject, self._report))

    def install_always(self, patches: Patches) -> None:
        """Forget earlier schedulers, and replace the constructors."""
        self._by_optimizer.clear()
        self._update_callbacks()
        self._stop_checks()
        for kind in CONSTRUCTORS:
            patches.replace(kind, "__init__", self._constructor)

    def _constructor(self, original: Callable[..., None]) -> Callable[..., None]:
        def __init__(scheduler: Any, *args: Any, **options: Any) -> None:  # noqa: N807
            original(scheduler, *args, **options)
            if self._stream.active:
                self._record_created(scheduler)

        return __init__

    def _update_callbacks(self) -> None:
        """Register for the steps of schedulers as long as some optimizer has none that was stepped."""
        others = [each for each in self._program.on_scheduler_step if each is not self._record_step]
        is_pending = any(not each.stepped for each in self._by_optimizer.values())
        self._program.on_scheduler_step = [*others, self._record_step] if is_pending else others

    def _on_created(self, scheduler: Any) -> None:
        """Record a scheduler at the end of its constructor."""
        state = self._program.optimizers.get(scheduler.optimizer)
        if state is None or len(self._by_optimizer) >= MAX_OPTIMIZERS or self._program.is_other_thread():
            return
        schedulers = self._by_optimizer.get(id(state))
        if schedulers is None:
            schedulers = self._by_optimizer[id(state)] = _OptimizerSchedulers(state)
            self._update_callbacks()
        if schedulers.stepped:
            return
        parts = getattr(scheduler, "_schedulers", ())
        schedulers.created = [
            each for each in schedulers.created if all(each.scheduler() is not part for part in parts)
        ]
        stack = program_stack()
        by_user = bool(stack) and is_user_code(stack[-1].f_code) and type(scheduler).__module__.startswith("torch.")
        event = SchedulerNeverStepped(
            location=user_location(), kind=type(scheduler).__name__, created_backward_count=self._stream.backward_count
        )
        schedulers.created.append(_CreatedScheduler(
            weakref.ref(scheduler), state.steps, event, [id(each) for each in stack], user_files(stack),
            run_by_library=None if by_user and not getattr(scheduler, "last_epoch", 0) else True,
        ))  # fmt: skip
        if self._check_caller not in self._stream.periodic_checks:
            self._stream.periodic_checks = [*self._stream.periodic_checks, self._check_caller]

    def _on_stepped(self, scheduler: Any) -> None:
        """Record a step, by the program or by another scheduler."""
        optimizer: Any = getattr(scheduler, "optimizer", None)
        state = self._program.optimizers.get(optimizer)
        schedulers = None if state is None else self._by_optimizer.get(id(state))
        if schedulers is None:
            return
        is_idle, schedulers.steps = (
            schedulers.stepped and schedulers.state.steps == schedulers.steps,
            schedulers.state.steps,
        )
        for each in self._by_optimizer.values():
            if not each.stepped and each is not schedulers:
                if is_idle and each.state.steps > each.steps:
                    each.others_stepped += 1
                    each.instead_at = user_location()
                each.steps = each.state.steps
        if not schedulers.stepped:
            schedulers.stepped = True
            schedulers.created.clear()
            self._update_callbacks()

    def _on_periodic_check(self) -> None:
        """Check for each new scheduler whether a library or the program called the running optimizer step."""
        every = (each for schedulers in self._by_optimizer.values() for each in schedulers.created)
        unchecked = [each for each in every if each.run_by_library is None]
        stack = program_stack() if unchecked else []
        for created in unchecked:
            others = [frame for depth, frame in enumerate(stack) if created.frames[depth : depth + 1] != [id(frame)]]
            created.run_by_library = not stack or any(map(is_library_frame, others))
            created.files |= user_files(stack)
        self._stop_checks()

    def _stop_checks(self) -> None:
        self._stream.periodic_checks = [each for each in self._stream.periodic_checks if each is not self._check_caller]

    def _report(self) -> None:
        for schedulers in self._by_optimizer.values():
            if len(schedulers.created) != 1:
                continue
            created = schedulers.created[0]
            created.event.optimizer_steps = schedulers.state.steps - created.steps
            if created.event.optimizer_steps < 2 or created.run_by_library is not False or in_notebook():
                continue
            if schedulers.others_stepped >= MIN_OTHERS_STEPPED:
                created.event.instead_at = schedulers.instead_at
            else:
                trees = parse_program(created.files, user_modules())
                created.event.condition = None if trees is None else _condition_of_steps(list(trees.values()))
            if created.event.condition is not None:
                self._stream.emit(created.event)


def _condition_of_steps(trees: list[ast.Module]) -> str | None:
    """Return the condition of the calls of ``step()`` of a scheduler; "" = there is no call, None = it is not known.

    The calls of a program whose conditions compare several texts, such as ``if interval == "batch"``, were meant to
    run for one of these texts.
    """
    accesses = [each for tree in trees for each in _scheduler_steps(tree)]
    if any(sets_in_groups(tree, "lr") or _is_looked_up(tree) for tree in trees):
        return None
    texts: set[str] = set()
    for scopes, _ in accesses:
        found = [_compared_texts(each, scopes, trees) for each in scopes if isinstance(each, _CONDITIONS)]
        compared = [each for each in found if each is not None]
        if not compared or not all(compared):
            return None
        texts = texts.union(*compared)
    if accesses and (len(texts) < 2 or any(_OFF & {text.lower() for text in _texts_in(tree)} for tree in trees)):
        return None
    around = [each for scopes, _ in accesses for each in scopes if isinstance(each, _CONDITIONS)]
    conditions = (each.subject if isinstance(each, ast.Match) else each.test for each in around)
    return next((ast.unparse(each) for each in conditions if "None" not in ast.unparse(each)), "")


def _compared_texts(condition: Any, scopes: tuple[Any, ...], trees: list[ast.Module]) -> set[str] | None:
    """Return the texts that a condition compares with; None = it checks for None only, empty = it is another one."""
    if isinstance(condition, ast.Match):
        return {text for each in condition.cases for text in _texts_in(each.pattern)}
    tests = condition.test.values if isinstance(condition.test, ast.BoolOp) else [condition.test]
    tests = [each for each in tests if "None" not in ast.unparse(each) and "sched" not in dotted_name(each)]
    found: set[str] = set()
    for each in tests:
        texts = _texts_in(each)
        is_comparison = isinstance(each, ast.Compare) and isinstance(each.ops[0], ast.Eq | ast.In | ast.Is)
        function = next((inner for inner in reversed(scopes) if isinstance(inner, ast.FunctionDef)), None)
        if function is not None:
            texts = texts.union(*(_passed_texts(function, name.id, trees) for name in nodes_in(each, ast.Name)))
        if not is_comparison or not texts:
            return set()
        found |= texts
    return found if tests else None


def _passed_texts(function: ast.FunctionDef, parameter: str, trees: list[ast.Module]) -> set[str]:
    """Return the texts that calls of a function pass for a parameter; empty if a call passes something else."""
    names = [each.arg for each in function.args.args if each.arg != "self"]
    found: set[str] = set()
    for call in (call for tree in trees for call in nodes_in(tree, ast.Call)):
        if parameter not in names or getattr(call.func, "attr", getattr(call.func, "id", "")) != function.name:
            continue
        passed = dict(zip(names, call.args, strict=False)) | {each.arg: each.value for each in call.keywords}
        value = passed.get(parameter)
        if not isinstance(value, ast.Constant) or not isinstance(value.value, str):
            return set()
        found.add(value.value)
    return found


def _texts_in(node: ast.AST) -> set[str]:
    """Return the texts in an expression, except the keys of subscripts."""
    keys = {id(each.slice) for each in nodes_in(node, ast.Subscript)}
    return {n.value for n in nodes_in(node, ast.Constant) if isinstance(n.value, str) and id(n) not in keys}


def may_step_schedule(tree: ast.Module) -> bool:
    """Return True if a source file may call ``step()`` of a scheduler."""
    return bool(_scheduler_steps(tree)) or _is_looked_up(tree)


def _scheduler_steps(tree: ast.Module) -> list[tuple[tuple[Any, ...], ast.expr]]:
    """Return the scopes and conditions around each access to ``step`` of an object that may be a scheduler.

    An object is excluded if the same function or class creates it by ``torch.optim``, or uses other attributes of it
    that schedulers lack.
    """
    accesses = _step_accesses(tree, ())
    return [(around, owner) for around, owner in accesses if not _is_not_scheduler(around, owner)]


def _step_accesses(node: ast.AST, around: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], ast.expr]]:
    """Yield the enclosing scopes and conditions, and the object of each access ``object.step``."""
    if isinstance(node, (ast.Module, ast.ClassDef, *_SCOPES, *_CONDITIONS)):
        around = (*around, node)
    if isinstance(node, ast.Attribute) and node.attr == "step" and isinstance(node.ctx, ast.Load):
        yield around, node.value
    for each in ast.iter_child_nodes(node):
        yield from _step_accesses(each, around)


def _is_not_scheduler(around: tuple[Any, ...], owner: ast.expr) -> bool:
    scopes = [each for each in around if not isinstance(each, _CONDITIONS)]
    path = dotted_name(owner)
    if not path:
        return isinstance(owner, ast.Call) and isinstance(owner.func, ast.Name) and owner.func.id == "super"
    if path == "self":
        return True  # ``self.step`` is a method of a user class
    classes = [each for each in scopes if isinstance(each, ast.ClassDef)]
    scope = classes[-1] if path.startswith("self.") and classes else scopes[-1]
    return any(_excludes_scheduler(each, path) for each in walk(scope))


def _excludes_scheduler(node: ast.AST, path: str) -> bool:
    """Return True if a node shows that an expression is not a scheduler."""
    if isinstance(node, ast.Attribute):
        return node.attr in _NON_SCHEDULER_ATTRIBUTES and dotted_name(node.value) == path
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
        return False
    called = dotted_name(node.value.func).split(".")
    return "optim" in called[:-1] and "lr_scheduler" not in called and path in map(dotted_name, node.targets)


def _is_looked_up(tree: ast.AST) -> bool:
    """Return True if ``step`` is looked up as a string: ``getattr(scheduler, "step")()``."""
    return any(
        isinstance(each, ast.Constant) and "step" in str(each.value).split(".")
        for node in nodes_in(tree, ast.Call)
        if dotted_name(node.func).rpartition(".")[2] in _LOOKUPS
        for each in node.args
    )


HOOK: Final = UnsteppedSchedules
