"""Tests of the interpreter: operations in order, functions, classes, branches and loops."""

import textwrap

import pytest

from trueloop.analysis.abstract_value import MANAGED, NO_GRAPH, ValueKind
from trueloop.analysis.interpreter.interpreter import interpret
from trueloop.analysis.operations import OpKind
from trueloop.analysis.project import parse_module

TRAINING = (
    OpKind.BACKWARD,
    OpKind.STEP,
    OpKind.CLEAR_GRADIENTS,
    OpKind.SET_MODE,
    OpKind.SCHEDULER_STEP,
    OpKind.UNSCALE,
    OpKind.CLIP_GRADIENTS,
)


def source(text):
    text = textwrap.dedent(text)
    return interpret(parse_module("train.py", text))


def operations(text, *kinds):
    return [
        (each.kind.value, each.node.lineno, len(each.loops), len(each.branches))
        for each in source(text).ops(*(kinds or TRAINING))
    ]


def test_operations_follow_program_order_through_functions():
    found = operations("""
        import torch
        from torch import nn, optim as o

        class Trainer:
            def __init__(self, model):
                self.model = model
                self.optimizer = o.Adam(model.parameters())

            def step(self, x):
                self.optimizer.zero_grad()
                self.model(x).sum().backward()
                self.optimizer.step()

            def fit(self):
                for epoch in range(3):
                    for x in batches:
                        self.step(x)

        Trainer(nn.Linear(2, 1)).fit()
    """)
    assert found == [("clear gradients", 11, 2, 0), ("backward", 12, 2, 0), ("step", 13, 2, 0)]


def test_statements_after_a_continue_are_conditional():
    found = operations("""
        import torch
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters())
        for i, x in enumerate(data):
            model(x).sum().backward()
            if (i + 1) % 4:
                continue
            optimizer.step()
            optimizer.zero_grad()
    """)
    assert found == [("backward", 6, 1, 0), ("step", 9, 1, 1), ("clear gradients", 10, 1, 1)]


WORDS = """
    import torch
    from torch import nn
    model = nn.Linear(2, 1)
    def run(phase{default}):
        {first}
        if phase == "train":
            model.train()
        elif phase != "test":
            model.double()
        else:
            model.eval()
    {calls}
"""


@pytest.mark.parametrize(
    ("calls", "first", "default", "lines"),
    [
        ('run("train")', "pass", "", [(8, 0)]),
        ('run("test")', "pass", "", [(12, 0)]),
        ('run("train"); run("test")', "pass", "", [(8, 0), (12, 0)]),
        ('for each in ("train", "test"): run(each)', "pass", "", [(8, 1), (12, 2)]),
        ("run(mode)", "pass", "", [(8, 1), (12, 2)]),
        ("run()", "pass", '="train"', [(8, 1), (12, 2)]),
        ('run("test")', 'phase = "train"', "", [(8, 1), (12, 2)]),
    ],
    ids=["one", "other", "both", "of a loop", "not known", "a default", "its own word"],
)
def test_string_arguments_decide_branches(calls, first, default, lines):
    found = operations(WORDS.format(calls=calls, first=first, default=default), OpKind.SET_MODE)
    assert [(line, branches) for _, line, _, branches in found] == lines


def test_boolean_arguments_decide_branches():
    found = operations("""
        import torch
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters())
        def train(clear):
            for x in data:
                if clear:
                    optimizer.zero_grad()
                model(x).sum().backward()
                optimizer.step()
        train(False)
    """)
    assert [name for name, *_ in found] == ["backward", "step"]


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        ("torch.optim.AdamW(net.parameters())", ValueKind.OPTIMIZER),
        ("optim.SGD(params=net.parameters(), lr=1)", ValueKind.OPTIMIZER),
        ("torch.optim.lr_scheduler.StepLR(opt, 3)", ValueKind.SCHEDULER),
        ("torch.amp.GradScaler('cuda')", ValueKind.SCALER),
        ("torch.cuda.amp.GradScaler()", ValueKind.SCALER),
        ("nn.CrossEntropyLoss()", ValueKind.LOSS),
        ("nn.Sequential(nn.Linear(2, 2))", ValueKind.MODEL),
        ("DDP(net)", ValueKind.MODEL),
        ("DataLoader(data)", ValueKind.LOADER),
        ("timm.create_model('resnet')", ValueKind.MODEL),
        ("torchvision.models.resnet18()", ValueKind.MODEL),
        ("something()", ValueKind.UNKNOWN),
        ("Local()", ValueKind.MODEL),
        ("Plain()", ValueKind.INSTANCE),
        ("copy.deepcopy(net)", ValueKind.MODEL),
        ("net.to('cuda')", ValueKind.MODEL),
        ("torch.compile(net)", ValueKind.MODEL),
        ("net.state_dict()", ValueKind.STATE),
    ],
)
def test_kind_follows_from_the_constructor(make, kind):
    text = f"""
        import copy, timm, torch, torchvision
        from torch import nn, optim
        from torch.nn.parallel import DistributedDataParallel as DDP
        from torch.utils.data import DataLoader
        class Local(nn.Module): ...
        class Plain: ...
        net = nn.Linear(2, 2)
        opt = optim.SGD(net.parameters())
        value = {make}
        value.train()
        owner = Plain()
        owner.part = value
    """
    assigned = [each for each in source(text).ops(OpKind.SET_ATTRIBUTE) if each.name == "part"]
    assert assigned[-1].inputs[0].kind is kind


def test_kind_of_an_argument_follows_from_use_or_annotation():
    text = """
        import torch
        def train(a, b, model, optimizer, c: torch.optim.Optimizer):
            for x in model:
                b.zero_grad()
                a(x).sum().backward()
                b.step()
                optimizer.step()
                c.step()
            a.eval()
    """
    steps = source(text).ops(OpKind.STEP)
    assert [each.node.lineno for each in steps] == [7, 9], "a name alone says nothing"
    assert [each.node.lineno for each in source(text).ops(OpKind.SET_MODE)] == [10]


def test_gradient_mode_follows_contexts():
    text = """
        import torch
        model = torch.nn.Linear(2, 1)
        @torch.no_grad()
        def a(): model(x)
        @torch.inference_mode()
        def b(): model(x)
        def c():
            with torch.set_grad_enabled(False): model(x)
        def d():
            with torch.no_grad():
                with torch.enable_grad(): model(x)
        def e():
            with anything(): model(x)
        a(), b(), c(), d(), e(), model(x)
    """
    assert [each.grad for each in source(text).ops(OpKind.MODEL_CALL)] == [False, False, False, True, None, True]


def test_a_context_may_be_created_before_it_is_entered():
    text = """
        import torch
        model = torch.nn.Linear(2, 1)
        half = torch.autocast("cuda", dtype=torch.bfloat16)
        off = torch.no_grad()
        with half: model(x)
        with off: model(x)
    """
    calls = source(text).ops(OpKind.MODEL_CALL)
    assert [each.autocast for each in calls] == ["torch.bfloat16", None]
    assert [each.grad for each in calls] == [True, False]


def test_autograd_graph_ends_at_detach():
    text = """
        import torch.nn.functional as F
        from torch import nn
        one, two = nn.Linear(2, 2), nn.Linear(2, 2)
        F.mse_loss(one(x).detach(), two(x)).backward()
    """
    root = source(text).ops(OpKind.BACKWARD)[0].subject
    assert len([each for each in root.ancestors() if each.kind is ValueKind.MODEL]) == 2
    assert len([each for each in root.autograd_graph() if each.kind is ValueKind.MODEL]) == 1


def test_a_tensor_constructor_creates_a_leaf_or_no_graph():
    text = """
        import torch
        from torch import nn
        net = nn.Linear(2, 1)
        plain = torch.tensor(net(x)).exp()
        leaf = torch.tensor(net(x), requires_grad=True).exp()
        weight = nn.Parameter(torch.zeros(3, device=device)).exp()
    """
    plain, leaf, weight = (each.result for each in source(text).ops(OpKind.TORCH_CALL) if each.name.endswith(".exp"))
    assert NO_GRAPH in plain.facts
    assert NO_GRAPH not in leaf.facts | weight.facts
    assert not any(each.kind is ValueKind.MODEL for each in leaf.autograd_graph())
    assert any(each.kind is ValueKind.MODEL for each in leaf.ancestors())


def test_a_result_has_its_sources():
    text = """
        import torch.nn.functional as F
        from torch import nn
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(2, 2)
            def forward(self, x):
                return F.softmax(self.fc(x), dim=1)
        net = Net()
        loss = F.cross_entropy(net(x), y)
        loss.item().backward()
    """
    loss = source(text).ops(OpKind.LOSS)[0]
    assert loss.inputs[0].name == "torch.nn.functional.softmax"
    assert any(each.name == "Net" for each in loss.result.ancestors())
    assert NO_GRAPH in source(text).ops(OpKind.BACKWARD)[0].subject.facts


def test_values_passed_to_unknown_code_escape():
    text = """
        import torch
        from elsewhere import helper
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters())
        print(model, optimizer)
        helper([optimizer])
    """
    found = source(text)
    assert [each.node.lineno for each in found.ops(OpKind.ESCAPE)] == [7]
    optimizer = next(each.subject for each in found.ops(OpKind.CREATE) if each.subject.kind is ValueKind.OPTIMIZER)
    assert found.escapes(optimizer, found.operations)


def test_accelerate_manages_prepared_values():
    text = """
        import torch
        from accelerate import Accelerator
        accelerator = Accelerator()
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters())
        model, optimizer = accelerator.prepare(model, optimizer)
        accelerator.backward(model(x).sum())
        optimizer.step()
    """
    step, backward = source(text).ops(OpKind.STEP)[0], source(text).ops(OpKind.BACKWARD)[0]
    assert MANAGED in step.subject.facts
    assert backward.inputs[0].kind is ValueKind.ACCELERATOR


def test_recursion_and_long_files_terminate():
    text = "def f(x):\n    return f(g(x))\ndef g(x):\n    return f(x)\nf(1)\n" + "x = 1\n" * 100
    assert source(text).operations is not None
    assert source("import torch\n" + "torch.relu(x)\n" * 70_000).operations == ()


def test_methods_called_on_their_class_are_run():
    found = operations(
        """
        import torch
        class Net(torch.nn.Module):
            def forward(self, x):
                return torch.relu(x)
            @staticmethod
            def train_on(model, optimizer):
                Net.forward(model, 1).sum().backward()
                optimizer.step()
            @classmethod
            def made(cls, width):
                return cls()
        class Other(Net):
            def forward(self, x):
                return Net.forward(self, x)
        net = Other.made(3)
        Net.train_on(net, torch.optim.SGD(net.parameters()))
    """,
        OpKind.FORWARD_CALL,
        OpKind.MODEL_CALL,
        OpKind.BACKWARD,
        OpKind.STEP,
    )
    assert found == [("forward call", 8, 0, 0), ("backward", 8, 0, 0), ("step", 9, 0, 0)]


def test_a_conditionally_defined_class_is_interpreted():
    assert not operations("""
        try:
            import torch
            class Net(torch.nn.Module):
                def forward(self, x):
                    return x
        except ImportError:
            Net = print
    """)


def test_a_loop_has_a_trip_count_and_conditions():
    file = source("""
        import torch
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters())
        K = 4
        def update(i):
            if i % K == 0:
                optimizer.step()
        if model:
            for epoch in range(1, 4):
                for i, x in enumerate(data):
                    update(i)
        while True:
            model(x)
    """)
    (step,) = file.ops(OpKind.STEP)
    assert [loop.trip_count() for loop in step.loops] == [3, None]
    assert len(step.branches) == 2
    (condition,) = step.conditions(step.loops[-1])
    assert condition.node.lineno == 7
    assert not step.is_unconditional_in(step.loops[0])
    assert condition.test is not None
    assert 4 in [each.constant() for each in condition.test.ancestors()]
    assert [each.loops[-1].trip_count() for each in file.ops(OpKind.MODEL_CALL)] == [None]


def test_loop_invariant_arguments():
    file = source("""
        import torch
        torch.manual_seed(3)
        for epoch in range(4):
            rate = 0.1 * epoch
            def make(model, lr, seed=1):
                return torch.optim.SGD(model.parameters(), lr, seed, seed + 1, epoch, self.rate, other(), int(FIXED))
            self.rate = 1
            make(net, rate).step()
    """)
    (step,) = file.ops(OpKind.STEP)
    (creation,) = file.ops(OpKind.CREATE)
    invariant = [file.is_loop_invariant(each, creation, step.loops[0]) for each in creation.node.args]
    assert invariant == [False, False, True, True, False, False, False, True]


def test_defaults_replace_missing_arguments():
    found = source("""
        import torch
        net = torch.nn.Linear(2, 1)
        def measure(model=net, x=None):
            model.eval()
        measure()
        def other(net):
            measure()
    """)
    one, other = found.ops(OpKind.SET_MODE)
    assert one.subject.name == other.subject.name == "torch.nn.Linear"
    assert one.subject is other.subject


def test_dict_items_yields_the_values():
    found = operations(
        """
        import torch
        heads = {"a": torch.nn.Linear(2, 1), "b": torch.nn.Linear(2, 2)}
        for name, head in heads.items():
            head.eval()
        state = dict(heads)
        state.update(c=torch.nn.Linear(2, 3))
    """,
        OpKind.SET_MODE,
    )
    assert found == [("set mode", 5, 1, 0)]


def test_starred_tuples_are_unpacked():
    found = operations("""
        import torch
        def build():
            net = torch.nn.Linear(2, 1)
            return net, torch.optim.SGD(net.parameters())
        def train(model, its):
            model(1).sum().backward()
            its.step()
        train(*build())
    """)
    assert found == [("backward", 7, 0, 0), ("step", 8, 0, 0)]


def test_an_unused_class_is_instantiated_once():
    file = source("""
        import torch
        class Task:
            def __init__(self, net: torch.nn.Module):
                self.optimizer = torch.optim.SGD(net.parameters())
    """)
    assert [each.subject.kind for each in file.ops(OpKind.CREATE)] == [ValueKind.OPTIMIZER, ValueKind.INSTANCE]


def test_comparing_tensors_gives_a_tensor():
    file = source("""
        import torch
        model = torch.nn.Linear(2, 1)
        right = (model(x) == y).sum()
        right is None
    """)
    (total,) = file.ops(OpKind.TORCH_CALL)
    assert total.name == "torch.Tensor.sum"
    assert not file.ops(OpKind.ESCAPE)


def test_partial_binds_arguments():
    file = source("""
        from functools import partial
        import torch
        from torch.utils.data import DataLoader
        batched = partial(DataLoader, batch_size=16, shuffle=True)
        train, test = batched([1]), batched([2], shuffle=False)
        adam = partial(torch.optim.Adam, lr=0.1)
        model = torch.nn.Linear(2, 1)
        adam(model.parameters())
        unknown = partial(torch.optim.Adam, model.parameters())
    """)
    train, test, _, adam = file.ops(OpKind.CREATE)
    assert (train.subject.kind, train.arguments["shuffle"].value, train.arguments["batch_size"].value) == (
        ValueKind.LOADER,
        True,
        16,
    )
    assert test.arguments["shuffle"].value is False
    assert adam.subject.kind is ValueKind.OPTIMIZER
    assert adam.subject.models()
    assert [each.node.lineno for each in file.ops(OpKind.ESCAPE)] == [10]


# Registries ---------------------------------------------------------------------------------------------------

REGISTRY_TABLE = """
import torch
BUILDERS = {}
def register(name, table=BUILDERS):
    def wrap(function):
        table[name] = function
        return function
    return wrap
@register("adam")
def adam(model):
    return torch.optim.Adam(model.parameters())
@register("sgd")
def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)
model = torch.nn.Linear(2, 1)
optimizer = BUILDERS["sgd"](model)
optimizer.step()
"""
REGISTRY_CLASS = """
import torch
class Registry:
    def __init__(self):
        self.items = {}
    def register(self, name):
        def wrap(kind):
            self.items[name] = kind
            return kind
        return wrap
MODELS = Registry()
@MODELS.register("net")
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
model = MODELS.items["net"]()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer.step()
"""


@pytest.mark.parametrize("script", [REGISTRY_TABLE, REGISTRY_CLASS])
def test_what_a_decorator_registers_is_known(script):
    steps = interpret(parse_module("a.py", script)).ops(OpKind.STEP)
    assert [each.subject.name for each in steps] == ["torch.optim.SGD"]
    assert len(steps[0].subject.models()) == 1


def test_a_decorator_that_registers_nothing_is_not_run():
    script = REGISTRY_TABLE.replace("register", "wrapped")
    assert [each.subject.name for each in interpret(parse_module("a.py", script)).ops(OpKind.STEP)] != [
        "torch.optim.SGD"
    ]


CONTEXT_MANAGERS = {
    "a generator": """
        @contextmanager
        def update(optimizer, clear):
            if clear:
                optimizer.zero_grad()
            yield optimizer
            optimizer.step()
    """,
    "a generator with try": """
        @contextlib.contextmanager
        def update(optimizer, clear):
            optimizer.zero_grad()
            try:
                with other():
                    yield optimizer
            finally:
                optimizer.step()
    """,
    "a class": """
        class update:
            def __init__(self, optimizer, clear):
                self.optimizer = optimizer

            def __enter__(self):
                self.optimizer.zero_grad()
                return self.optimizer

            def __exit__(self, kind, error, trace):
                self.optimizer.step()
    """,
}


@pytest.mark.parametrize("manager", CONTEXT_MANAGERS.values(), ids=CONTEXT_MANAGERS)
def test_the_body_of_a_with_statement_runs_within_its_context_manager(manager):
    found = source(
        """
import contextlib
import torch
from contextlib import contextmanager
from torch import nn
"""
        + textwrap.dedent(manager)
        + """
model = nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train():
    for batch in range(3):
        with torch.enable_grad(), update(optimizer, True) as entered:
            model(torch.randn(2, 2)).sum().backward()
            entered.add_param_group({})
            if batch:
                return batch
train()
"""
    ).ops(OpKind.BACKWARD, OpKind.STEP, OpKind.CLEAR_GRADIENTS)
    assert [each.kind for each in found] == [OpKind.CLEAR_GRADIENTS, OpKind.BACKWARD, OpKind.STEP]
    clear, backward, step = found
    assert clear.subject is step.subject
    assert [len(each.loops) for each in found] == [1, 1, 1]
    assert [each.name for each in backward.functions] == ["train"]


def test_a_context_manager_that_only_other_files_use_is_not_judged():
    assert not operations("""
        from contextlib import contextmanager

        @contextmanager
        def update(optimizer):
            optimizer.zero_grad()
            yield
            optimizer.step()
    """)


def test_a_context_manager_may_be_entered_within_itself():
    found = operations("""
        import torch
        from contextlib import contextmanager
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        @contextmanager
        def mode(train):
            model.train(train)
            yield
            model.train(not train)

        with mode(True):
            with mode(False):
                optimizer.step()
    """)
    assert [each[0] for each in found] == ["set mode", "set mode", "step", "set mode", "set mode"]
