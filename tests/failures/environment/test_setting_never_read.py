"""ENV008: a hyper-parameter that nothing reads."""

import pytest

PARSER = """
import argparse
import torch
from torch import nn
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
"""
LOOP = """
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
for epoch in range(5):
    optimizer.zero_grad()
    model(torch.randn(16, 4)).pow(2).mean().backward()
    optimizer.step()
"""
FIXED = LOOP.replace("lr=args.lr", "lr=0.1")
IMPORTS = "import torch\nfrom dataclasses import asdict, dataclass\nfrom torch import nn\n"
FAULTY = {
    "a seed that nothing sets": PARSER
    + "parser.add_argument('--seed', type=int, default=0)  # <- ENV008\nargs = parser.parse_args()"
    + LOOP,
    "a function for the seed that nothing calls": PARSER
    + "def set_seed(value):  # <- ENV012\n    torch.manual_seed(value)\n    random.seed(value)\n"
    + "parser.add_argument('--random-seed', type=int)  # <- ENV008\nargs = parser.parse_args()"
    + LOOP,
    "a function with the name of a method": IMPORTS
    + """
def loaders(data, batch_size=32):
    return torch.utils.data.DataLoader(data, batch_size)
def fit(net, data, batch_size):  # <- ENV008
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in loaders(data):
        optimizer.zero_grad()
        (net(x) - y).pow(2).mean().backward()
        optimizer.step()
""",
    "an option, printed": PARSER.replace("0.1)\n", "0.1)  # <- ENV008\n")
    + "args = parser.parse_args()\nprint(args)\nprint(vars(args))"
    + FIXED,
    "dropout": PARSER
    + 'parser.add_argument("-p", "--drop-rate", type=float)  # <- ENV008\nargs = parser.parse_args()'
    + LOOP,
    "epochs, returned by a function": PARSER
    + """
def read():
    parser.add_argument("--epochs", type=int, default=9)  # <- ENV008
    options, unknown = parser.parse_known_args()
    return options
args = read()
torch.save({"args": vars(args)}, "run.pt")
"""
    + LOOP,
    "passed to functions": PARSER
    + """
parser.add_argument("--weight_decay", type=float, default=0.0)  # <- ENV008
def build(model, opt):
    return torch.optim.Adam(model.parameters(), opt.lr)
def main(args):
    model = nn.Linear(4, 1)
    optimizer = build(model, args)
    for epoch in range(args.epochs):
        optimizer.zero_grad()
        model(torch.randn(16, 4)).pow(2).mean().backward()
        optimizer.step()
main(parser.parse_args())
""",
    "a dataclass": IMPORTS
    + """
@dataclass
class TrainConfig:
    lr: float = 0.1
    momentum: float = 0.9  # <- ENV008
args = TrainConfig()
"""
    + LOOP,
    "a class of constants": IMPORTS
    + "class CFG:\n    lr = 0.1\n    weight_decay = 0.01  # <- ENV008\nargs = CFG\n"
    + LOOP,
    "a class that sets its attributes": IMPORTS
    + """
class Config:
    def __init__(self):
        self.lr = 0.1
        self.dropout = 0.3  # <- ENV008
class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.model = nn.Sequential(nn.Linear(4, 1), nn.Dropout(p=0.5))
        self.dropout = 3
    def fit(self):
        optimizer = torch.optim.SGD(self.model.parameters(), lr=self.cfg.lr)
        self.model(torch.randn(16, 4)).pow(2).mean().backward()
        print(self.dropout)
Trainer(Config()).fit()
""",
    "a dictionary": IMPORTS
    + "config = {'rate': 0.1, 'weight_decay': 0.01}  # <- ENV008"
    + LOOP.replace("args.lr", "config['rate']"),
    "a namespace": IMPORTS
    + "from types import SimpleNamespace\nargs = SimpleNamespace(lr=0.1, max_grad_norm=1.0)  # <- ENV008"
    + LOOP.replace("    optimizer.step", "    nn.utils.clip_grad_norm_(model.parameters(), 5.0)\n    optimizer.step"),
    "a constant": IMPORTS + "WEIGHT_DECAY = 1e-4  # <- ENV008\nLR = 0.1" + LOOP.replace("args.lr", "LR"),
    "a local variable": IMPORTS
    + "def main():\n    epochs = 20  # <- ENV008"
    + FIXED.replace("\n", "\n    ")
    + "\nmain()",
    "a parameter of a module": IMPORTS
    + """
class Net(nn.Module):
    def __init__(self, hidden, dropout=0.2):  # <- ENV008
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, hidden), nn.Dropout(0.5), nn.Linear(hidden, 1))
    def forward(self, x):
        return self.layers(x)
Net(8, 0.4)(torch.randn(16, 4)).pow(2).mean().backward()
""",
    "a click option": IMPORTS
    + "import click\n@click.command()\n@click.option('--lr', default=0.1)\ndef main(lr):  # <- ENV008"
    + FIXED.replace("\n", "\n    "),
    "a class with a parameter": PARSER
    + """
parser.add_argument("--patience", type=int, default=5)  # <- ENV008
class EarlyStopping:
    def __init__(self, patience=3):
        self.patience = patience
args = parser.parse_args()
stopper = EarlyStopping()
"""
    + LOOP,
}
CORRECT = {
    "a method of the module with the name of a function": IMPORTS
    + """
def train(net, loader, batch_size=32):
    return len(loader)
def fit(net, loader, batch_size, lr):
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    net.train()
    for x, y in loader:
        optimizer.zero_grad()
        (net(x) - y).pow(2).mean().backward()
        optimizer.step()
""",
    "the state of one sample": IMPORTS
    + """
class Model(nn.Module):
    def begin_state(self, width, batch_size=1):
        return torch.zeros(batch_size, width)
def predict(model, prefix, batch_size, width):
    state = model.begin_state(width)
    for x in prefix:
        y, state = model(x, state)
    return y
def fit(model, x, y):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (model(x) - y).pow(2).mean().backward()
    optimizer.step()
""",
    "all are read": PARSER
    + 'parser.add_argument("--epochs")\nargs = parser.parse_args()'
    + LOOP.replace("5", "args.epochs"),
    "unpacked": PARSER
    + "parser.add_argument('--momentum', type=float)\nargs = parser.parse_args()\nkwargs = vars(args)"
    + LOOP.replace("lr=args.lr", "**kwargs"),
    "passed to an unknown function": PARSER
    + "from library import fit\nparser.add_argument('--momentum')\nargs = parser.parse_args()\nfit(args)"
    + LOOP,
    "read by name": PARSER
    + "parser.add_argument('--momentum')\nargs = parser.parse_args()\nfor k in ['momentum']: print(getattr(args, k))"
    + LOOP,
    "a fixed seed": PARSER
    + "parser.add_argument('--seed', type=int)\nargs = parser.parse_args()\nnp.random.seed(1)\nprint(args.seed)"
    + LOOP,
    "a seed that a library sets": PARSER
    + "from lightning import seed_everything\nparser.add_argument('--seed', type=int)\nargs = parser.parse_args()\n"
    + "seed_everything(args.seed)"
    + LOOP,
    "getattr": PARSER
    + "parser.add_argument('--momentum')\nargs = parser.parse_args()\nm = getattr(args, 'momentum', 0.9)"
    + LOOP,
    "asdict": IMPORTS
    + "@dataclass\nclass C:\n    lr: float = 0.1\n    momentum: float = 0.9\nargs = C()\nhp = asdict(args)"
    + "\ntorch.optim.SGD([], **hp)"
    + LOOP,
    "get": IMPORTS
    + "config = dict(lr=0.1, seed=3)\ntorch.manual_seed(config.get('seed'))"
    + LOOP.replace("args.lr", "config['lr']"),
    "a method of the configuration": IMPORTS
    + """
@dataclass
class Config:
    lr: float = 0.1
    momentum: float = 0.9
    def optimizer(self, parameters):
        return torch.optim.SGD(parameters, self.lr, momentum=self.momentum)
args = Config()
"""
    + LOOP,
    "another destination": PARSER
    + "parser.add_argument('--momentum', dest='mu')\nargs = parser.parse_args()\nprint(args.mu)"
    + LOOP,
    "globals": IMPORTS + "weight_decay = 0.1\nlr = 0.1\nprint(globals())" + LOOP.replace("args.lr", "lr"),
    "a class of a library reads the fields": IMPORTS
    + "from library import Trainable\nclass Config(Trainable):\n    lr = 0.1\n    momentum = 0.9\nargs = Config()"
    + LOOP,
    "a wandb run": PARSER
    + "import wandb\nparser.add_argument('--momentum')\nargs = parser.parse_args()\nwandb.init(config=args)\n"
    + "print(wandb.config)"
    + LOOP,
    "a parameter that an interface demands": IMPORTS
    + """
class Base:
    pass
class Plain(Base):
    def build(self, model, lr, momentum=0.9):
        print("built")
        return torch.optim.SGD(model.parameters(), lr=0.1)
model = nn.Linear(4, 1)
model(torch.randn(16, 4)).pow(2).mean().backward()
""",
    "the state of a recurrent layer": IMPORTS
    + """
class Net(nn.Module):
    def forward(self, x, hidden):
        y = x * 2
        return y
Net()(torch.ones(2, requires_grad=True), None).sum().backward()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_setting(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(script, "ENV008")


def test_a_setting_without_a_place_is_a_note(lint_reports):
    (found,) = lint_reports(IMPORTS + "WARMUP_STEPS = 100  # <- ENV008" + FIXED)
    assert found.severity == "note"


OPTIONS = {
    "an option of any name": "parser.add_argument('--resume', default='')  # <- ENV008\nargs = parser.parse_args()",
    "saved in a checkpoint": "parser.add_argument('--augment', action='store_true')  # <- ENV008\n"
    "args = parser.parse_args()\ncheckpoint = {'args': args, 'epoch': 3}\ntorch.save(checkpoint, 'last.pt')",
    "a method of its name": "parser.add_argument('--seed', type=int)  # <- ENV008\nargs = parser.parse_args()\n"
    "def set_seed(value):\n    np.random.seed(value)",
    "of an object": "class Opt:\n    def parse(self):\n        parser.add_argument('--mixup')  # <- ENV008\n"
    "        return parser.parse_args()\nargs = Opt().parse()",
    "copied to an attribute": "parser.add_argument('--beta', type=float)  # <- ENV008\nargs = parser.parse_args()\n"
    "class Trainer:\n    def __init__(self, args):\n        self.beta = args.beta\n        print('beta', self.beta)\n"
    "Trainer(args)",
    "a parser that parses nothing": "options = argparse.ArgumentParser()  # <- ENV008\n"
    "options.add_argument('--lr', type=float)\nargs = torch.load('args.pt')",
}
READ_OPTIONS = {
    "copied to an attribute that is read": "parser.add_argument('--beta', type=float)\nargs = parser.parse_args()\n"
    "class Trainer:\n    def __init__(self, args):\n        self.beta = args.beta\n    def loss(self, x):\n"
    "        return self.beta * x\nTrainer(args)",
    "copied to another object": "parser.add_argument('--beta', type=float)\nargs = parser.parse_args()\n"
    "class Trainer:\n    def __init__(self, args):\n        self.model.beta = args.beta\nTrainer(args)",
    "a launcher passes it": "parser.add_argument('--local-rank', type=int)\nargs = parser.parse_args()",
    "kept for old commands": "parser.add_argument('--fp16', help='Deprecated, use --amp.')\nargs = parser.parse_args()",
    "passed by a notebook": "parser.add_argument('-f', '--file', help='quick hack for jupyter')\n"
    "args = parser.parse_args()",
    "without an effect on training": "parser.add_argument('--exp_name')\nargs = parser.parse_args()",
    "read from a checkpoint": "parser.add_argument('--mixup')\nargs = parser.parse_args()\n"
    "torch.save({'args': args}, 'last.pt')\nold = torch.load('last.pt')['args']\nprint(old.mixup)",
    "given to a library": "import library\nparser.add_argument('--mixup')\nargs = parser.parse_args()\n"
    "state = {'run': library.Run(args)}",
    "a namespace that is copied": "parser.add_argument('--mixup')\nargs = parser.parse_args()\n"
    "state = {**vars(args)}\nprint(state['mixup'])",
    "a parser that another function parses": "options = argparse.ArgumentParser()\n"
    "options.add_argument('--mixup')\nargs = library.parse(options)",
}


@pytest.mark.parametrize("script", OPTIONS.values(), ids=OPTIONS)
def test_an_option_that_nothing_reads_is_a_warning(lint_reports, script):
    head = PARSER if script.startswith(("parser", "class")) else PARSER.partition("parser =")[0]
    (found,) = lint_reports(head + script + LOOP)
    assert found.severity == "warning"


@pytest.mark.parametrize("script", READ_OPTIONS.values(), ids=READ_OPTIONS)
def test_options_that_may_be_read(lint_is_clean, script):
    head = PARSER if script.startswith(("parser", "import")) else PARSER.partition("parser =")[0]
    lint_is_clean(head + script + LOOP, "ENV008")


def test_a_loop_that_trains_nothing_is_no_place(lint_reports):
    script = """
EPOCHS = 20  # <- ENV008
for epoch in range(30):
    writer.add_scalar("loss", 0.9**epoch, epoch)
def train(net, loader):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        (net(x) - y).pow(2).mean().backward()
        optimizer.step()
"""
    (found,) = lint_reports(IMPORTS + script)
    assert found.severity == "note"


def test_functions_that_return_each_others_settings_end(lint_is_clean):
    script = "def one(args):\n    return two(args)\ndef two(args):\n    return one(args)\none(parser.parse_args())\n"
    lint_is_clean(PARSER + script + "args = one(parser.parse_args())" + LOOP, "ENV008")


CONFIGURED = {
    "config.py": """
class Config:
    lr: float = 0.1
    batch_size: int = 128

extra_config = {"weight_decay": 0.1}
""",
    "train.py": """
import torch
from torch import nn
from config import Config, extra_config

model, config = nn.Linear(4, 1), Config()
data = torch.utils.data.TensorDataset(torch.randn(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=config.lr)
for (x,) in torch.utils.data.DataLoader(data, batch_size=16):
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
""",
}


@pytest.mark.parametrize(
    ("other", "codes"),
    [
        ("def crop(rows, config):\n    return rows[: config.batch_size], config.extra_config['weight_decay']\n", set()),
        ("x = 1\n", {"ENV008"}),
    ],
)
def test_a_field_that_another_file_reads_is_read(tmp_path, other, codes):
    assert _codes(tmp_path, {**CONFIGURED, "other.py": other}) == codes


CONSTANTS = CONFIGURED["train.py"].replace("from config import Config, extra_config", "import ships, models")
CONSTANTS = CONSTANTS.replace("model, config = nn.Linear(4, 1), Config()", "WEIGHT_DECAY = 5e-4\nmodel = models.Net()")
CONSTANTS = CONSTANTS.replace("config.lr", "0.1")
NET = "from torch import nn\nclass Net(nn.Linear):\n    def __init__(self):\n        super().__init__(4, 1)\n"


@pytest.mark.parametrize(
    ("other", "codes"),
    [("from train import *\nprint(WEIGHT_DECAY)\n", set()), ("x = 1\n", {"ENV008"})],
)
def test_a_constant_of_a_program_with_unknown_imports(tmp_path, other, codes):
    assert _codes(tmp_path, {"train.py": CONSTANTS, "models.py": NET, "other.py": other}) == codes


SHARED = {
    "options.py": """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--crop", type=int)
args = parser.parse_args()
""",
    "train.py": CONFIGURED["train.py"]
    .replace("from config import Config, extra_config", "import options")
    .replace("model, config = nn.Linear(4, 1), Config()", "model = nn.Linear(4, 1)\nconfig = options.args"),
}


@pytest.mark.parametrize(
    ("other", "codes"),
    [
        ("import options\nprint(options.args.crop)\n", set()),
        ("def crop(x, opt):\n    return x[: opt.crop]\n", set()),
        ("import argparse\nargs = argparse.ArgumentParser().parse_args()\nprint(args.crop)\n", {"ENV008"}),
    ],
)
def test_an_option_that_another_program_reads_is_read(tmp_path, other, codes):
    assert _codes(tmp_path, {**SHARED, "other.py": other}) == codes


def _codes(tmp_path, files):
    from trueloop.analysis.project import Project
    from trueloop.failures.load import catalogue
    from trueloop.lint.check_file import ActiveRule
    from trueloop.lint.check_tree import LintJob, lint_files
    from trueloop.lint.files import read_text

    for name, text in files.items():
        (tmp_path / name).write_text(text)
    paths = sorted(tmp_path.glob("*.py"))
    entry = catalogue()["ENV008"]
    assert entry.failure.rule is not None
    job = LintJob(
        [ActiveRule(entry.failure, entry.slug, entry.failure.rule)], project=Project(map(str, paths), read_text)
    )
    found = [each for linted in lint_files(paths, job, jobs=1) for each in linted.result.findings]
    return {each.code for each in found if each.severity != "note"}


DROPPED_HEAD = (
    IMPORTS
    + """
class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 1)
    def forward(self, h, strength=1.0):
        return self.net(h * strength)
def smoothed(out, y, amount=0.1):
    return (out - y * (1 - amount)).pow(2).mean()
"""
)
DROPPED_TAIL = """
def fit(net, loader):
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for number, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = {loss}
        loss.backward()
        optimizer.step()
net = Net()
fit(net, [(torch.randn(4, 8), torch.randn(4, 1))])
"""
NET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), Head()
    {methods}
"""
PLAIN = "def forward(self, x):\n        return self.head(self.body(x))"


def dropped(methods: str, loss: str, functions: str = "") -> str:
    return DROPPED_HEAD + NET.replace("{methods}", methods) + functions + DROPPED_TAIL.replace("{loss}", loss)


PASSED_LOSS = "(net(x, number / 10) - y).pow(2).mean()"
DROPPED = {
    "by forward": dropped(
        "def forward(self, x, strength=1.0):\n        return self.head(self.body(x))  # <- ENV008", PASSED_LOSS
    ),
    "by forward, as a keyword": dropped(
        "def forward(self, x, strength):\n        return self.head(self.body(x))  # <- ENV008",
        "(net(x, strength=0.5) - y).pow(2).mean()",
    ),
    "by a method": dropped(
        "def encode(self, x, scale=0.1):\n        return self.body(x) * scale\n"
        "    def forward(self, x, scale=0.1):\n        return self.encode(x)  # <- ENV008",
        "(net(x, scale=0.5) - y).pow(2).mean()",
    ),
    "by a function": dropped(
        PLAIN,
        "loss_of(net, x, y, amount=0.2)",
        "def loss_of(net, x, y, amount=0.1):\n    out = net(x)\n    return smoothed(out, y)  # <- ENV008\n",
    ),
}
NOT_DROPPED = {
    "passed on": dropped("def forward(self, x, strength=1.0):\n        return self.head(x, strength)", PASSED_LOSS),
    "nothing passes it": dropped("def forward(self, x, strength=1.0):\n        return self.head(x)", "net(x).mean()"),
    "None is passed": dropped(
        "def forward(self, x, strength=1.0):\n        return self.head(x)", "net(x, None).mean()"
    ),
    "another value on purpose": dropped(
        "def forward(self, x, strength=1.0):\n        return self.head(x, strength=1.0)", PASSED_LOSS
    ),
    "one call of two gets another value": dropped(
        "def forward(self, x, strength=1.0):\n        return self.head(x) + self.head(x, 0.5)", PASSED_LOSS
    ),
    "passed as keywords": dropped(
        "def forward(self, x, strength=1.0, **rest):\n        return self.head(x, **rest)", PASSED_LOSS
    ),
    "a parameter of no call": dropped(
        "def forward(self, x, other=1.0):\n        return self.head(self.body(x))", PASSED_LOSS
    ),
    "a message": dropped(
        PLAIN,
        "loss_of(net, x, y, True)",
        "def show(x, verbose=False):\n    return print(x) if verbose else None\n"
        "def loss_of(net, x, y, verbose=False):\n    show(x)\n    return (net(x) - y).pow(2).mean()\n",
    ),
}


@pytest.mark.parametrize("script", DROPPED.values(), ids=DROPPED)
def test_lint_reports_parameters_that_are_not_passed_on(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", NOT_DROPPED.values(), ids=NOT_DROPPED)
def test_lint_accepts_parameters_that_are_passed_on_or_not_taken(lint_is_clean, script):
    lint_is_clean(script, "ENV008")


SWALLOWED = {
    "a shorter name": """
class Engine:
    def __init__(self, net, lr=0.1, **kwargs):
        self.net, self.lr = net, lr
        self.criterion = nn.CrossEntropyLoss(weight=kwargs.get("weight"))  # <- ENV008
        self.log_every = kwargs.get("log_every", 10)
    def fit(self, x, y):
        self.criterion(self.net(x), y).backward()
Engine(net, lr=0.2, class_weights=weights, log_every=3).fit(x, y)
""",
    "the same setting by another name, through an attribute": """
class Engine:
    def __init__(self, net, **options):
        self.net, self.options = net, options
    def fit(self, x):
        optimizer = torch.optim.SGD(self.net.parameters(), lr=self.options.get("learning_rate", 0.1))  # <- ENV008
        for _ in range(self.options["rounds"]):
            optimizer.zero_grad()
            self.net(x).mean().backward()
            optimizer.step()
Engine(net, lr=0.5, rounds=3).fit(x)
""",
    "a method": """
class Runner:
    def run(self, net, **kw):
        loss(net, kw.get("weight")).backward()  # <- ENV008
runner = Runner()
runner.run(net, weights=w)
""",
    "a plural": """
def run(net, **kw):
    mask = kw.pop("masks", None)  # <- ENV008
    loss(net, mask, bins=kw.get("bins")).backward()
run(net, mask=m, bins=4)
""",
    "a hyper-parameter": """
def run(net, **kw):
    optimizer = torch.optim.SGD(net.parameters(), lr=kw["lr"])  # <- ENV008
    net(x).mean().backward()
    optimizer.step()
run(net, lr=0.1, weight_decay=0.01)
""",
}
NOT_SWALLOWED = {
    "passed on": """
def run(net, **kw):
    rounds = kw.pop("rounds", 3)
    fit(net, rounds, **kw)
    net(x).mean().backward()
run(net, lr=0.1, round=2)
""",
    "every item is set": """
class Engine:
    def __init__(self, net, **kw):
        self.weight = kw.get("weight")
        for key, value in kw.items():
            setattr(self, key, value)
        net(x).mean().backward()
Engine(net, class_weight=w)
""",
    "both names are read": """
def run(net, **kw):
    weight = kw.get("weight") or kw.get("class_weight")
    loss(net, weight).backward()
run(net, class_weight=w)
""",
    "something else that the caller passes to all": """
def run(net, **kw):
    loss(net, kw.get("mask")).backward()
run(net, verbose=True)
""",
    "both are passed": """
def run(net, **kw):
    loss(net, kw.get("target_mask")).backward()
run(net, mask=m, target_mask=t)
""",
    "a method of another object": """
class Net(nn.Module):
    def fit(self, x, **kw):
        loss(self, x, kw.get("mask")).backward()
classifier.fit(x, batch_size=3, masks=m)
""",
    "settings that a dictionary adds": """
def run(net, **kw):
    loss(net, kw.get("weight")).backward()
run(net, class_weight=w, **settings)
""",
    "a base class": """
class Base:
    def __init__(self, net, **kw):
        self.kw, self.net = kw, net
    def weight(self):
        return self.kw.get("weight")
class Engine(Base):
    def fit(self):
        loss(self.net, self.weight(), self.kw["class_weight"]).backward()
Engine(net, class_weight=w)
""",
}


@pytest.mark.parametrize("script", SWALLOWED.values(), ids=SWALLOWED)
def test_lint_reports_keywords_that_are_read_by_another_name(lint_reports, script):
    lint_reports(IMPORTS + script)


@pytest.mark.parametrize("script", NOT_SWALLOWED.values(), ids=NOT_SWALLOWED)
def test_lint_accepts_keywords_that_are_read_or_not_meant(lint_is_clean, script):
    lint_is_clean(IMPORTS + script)


def test_a_setting_with_the_value_of_the_default_is_a_note(lint_is_clean):
    lint_is_clean(
        IMPORTS
        + """
class Solver:
    default_args = {"lr": 1e-3, "weight_decay": 0.0}
    def fit(self, net, loader):
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, weight_decay=0)
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(net(x), y).backward()
            optimizer.step()
"""
    )


def test_options_for_downloads_and_memory_are_no_settings(lint_is_clean):
    options = ("--cache_dir", "--download", "--pin-memory", "--hf-cache")
    added = "".join(f"parser.add_argument('{each}')\n" for each in options)
    lint_is_clean(PARSER + added + "args = parser.parse_args()" + LOOP, "ENV008")


CROPS = """
class Cells:
    def __init__(self, rows, out_size=388):
        self.rows, self.out_size = rows[:out_size], out_size
def loader(rows, out_size, batch_size):
    return torch.utils.data.DataLoader(Cells(rows), batch_size=batch_size){mark}
def train(net, rows, size):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in loader(rows, {size}, 4):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()
"""


def test_a_dropped_argument_that_equals_the_default_is_accepted(lint_codes, lint_reports):
    assert "ENV008" not in lint_codes(IMPORTS + CROPS.format(size=388, mark=""))
    for size in ("256", "size"):
        lint_reports(IMPORTS + CROPS.format(size=size, mark="  # <- ENV008"))


@pytest.mark.parametrize(
    ("rate", "optimizer", "is_reported"),
    [(0.001, "Adam", False), (0.01, "RMSprop", False), (0.05, "Adam", True), (0.01, "AdamW", True)],
)
def test_a_constant_rate_that_is_the_default_of_the_optimizer(lint_codes, rate, optimizer, is_reported):
    script = (
        IMPORTS
        + f"""
learning_rate = {rate}
net = nn.Linear(4, 1)
optimizer = torch.optim.{optimizer}(net.parameters())
for step in range(9):
    optimizer.zero_grad()
    net(torch.randn(8, 4)).mean().backward()
    optimizer.step()
"""
    )
    assert ("ENV008" in lint_codes(script)) is is_reported
