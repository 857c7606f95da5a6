"""`trueloop diagnose` on small scripts of known causes, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trueloop.app.diagnosis.diagnose_command import DiagnoseOptions, diagnose, parse_duration
from trueloop.core.errors import InvalidConfig
from trueloop.sanitizer.run_program import ProgramCommand

Diagnose = Callable[..., subprocess.CompletedProcess[str]]
BATCHES = """
for epoch in range({epochs}):
    for rows in torch.randperm(len(x)).split(64):
        loss = {loss}(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print("done")
"""
CLASSES = """
import torch
from torch import nn
torch.manual_seed(0)
x = torch.randn(640, 8)
y = (x[:, 0] + x[:, 1] > 0).long()
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
""" + BATCHES.format(epochs=12, loss="nn.functional.cross_entropy")
NUMBERS = """
import torch
from torch import nn
torch.manual_seed(0)
x = torch.randn(640, 4)
y = 2 * x[:, :1] - x[:, 1:2]
model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
""" + BATCHES.format(epochs=12, loss="nn.functional.mse_loss")


@pytest.fixture
def run(forker: Any, tmp_path: Path) -> Diagnose:
    def run(text: str, *options: str, arguments: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        (tmp_path / "train.py").write_text(text)
        budget = () if "--budget" in options else ("--budget", "10m")
        words = ("-m", "trueloop", "diagnose", *budget, "--json", "found.json", *options, "train.py")
        return forker.run(*words, *arguments, cwd=tmp_path)

    return run


@pytest.fixture
def found(run: Diagnose, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def found(text: str, *options: str) -> dict[str, Any]:
        ended = run(text, *options)
        assert ended.returncode == 0, ended.stderr
        return json.loads((tmp_path / "found.json").read_text())

    return found


def words(text: str) -> str:
    """Return a text in one line, as the terminal's width wraps it."""
    return " ".join(text.split())


def helping(found: dict[str, Any]) -> list[str]:
    return [each["key"] for each in found["outcomes"] if each["effect"] == "helps"]


@pytest.mark.parametrize(
    ("text", "cures"),
    [
        (CLASSES.replace("lr=0.2", "lr=200.0"), {"rate 0.01", "rate 0.001", "optimizer"}),
        (CLASSES.replace("lr=0.2", "lr=0.0001"), {"rate 100", "rate 1000", "optimizer"}),
        (NUMBERS.replace("\nmodel =", "\nx = x * torch.tensor([5e3, 1e2, 1.0, 1.0])\nmodel ="), {"inputs"}),
        (NUMBERS.replace("\nmodel =", "\ny = 8e4 + 1e4 * y\nmodel ="), {"targets"}),
        (NUMBERS.replace("nn.Linear(32, 1))", "nn.Linear(32, 1), nn.Sigmoid())"), {"activation", "targets"}),
        (NUMBERS.replace("lr=0.003", "lr=0.003, weight_decay=100.0"), {"decay"}),
        (
            NUMBERS.replace("optimizer =", "for each in model.parameters():\n    nn.init.zeros_(each)\noptimizer ="),
            {"initialisation"},
        ),
        (
            CLASSES.replace(
                "        optimizer.step",
                "        nn.utils.clip_grad_norm_(model.parameters(), 1e-4)\n        optimizer.step",
            ),
            {"clipping"},
        ),
        (
            CLASSES.replace("nn.ReLU(), ", "nn.Sigmoid(), " + "nn.Linear(32, 32), nn.Sigmoid(), " * 6),
            {"hidden activations"},
        ),
    ],
    ids=[
        "rate too high",
        "rate too low",
        "inputs",
        "targets",
        "activation",
        "decay",
        "initialisation",
        "clipping",
        "gradient vanishes",
    ],
)
@pytest.mark.slow(reason="runs dozens of experiments")
def test_the_cause_is_the_first_answer(found: Callable[..., dict[str, Any]], text: str, cures: set[str]):
    assert helping(found(text))[0] in cures


@pytest.mark.slow(reason="runs dozens of experiments")
def test_a_change_names_the_users_line_and_the_losses(run: Diagnose):
    ended = run(CLASSES.replace("lr=0.2", "lr=200.0"))
    assert ended.stdout == "done\n"
    assert "train.py:8: optimizer = torch.optim.SGD(model.parameters(), lr=200.0)" in words(ended.stderr)
    assert "lr=0.2 instead of lr=200" in words(ended.stderr)
    assert "after 100 updates (both seeds)" in words(ended.stderr)


def test_nothing_helps_a_healthy_script(found: Callable[..., dict[str, Any]]):
    result = found(CLASSES)
    assert helping(result) == []
    assert result["headline"].startswith("The run learns: loss 0.")


@pytest.mark.slow(reason="runs dozens of experiments")
def test_random_labels_are_not_learned_by_any_change(found: Callable[..., dict[str, Any]]):
    result = found(CLASSES.replace("(x[:, 0] + x[:, 1] > 0).long()", "torch.randint(2, (640,))").replace("32", "128"))
    assert helping(result) == []
    assert "the labels may not follow from the inputs" in result["headline"]


@pytest.mark.slow(reason="runs dozens of experiments")
def test_a_model_that_cannot_fit_one_batch_is_said(found: Callable[..., dict[str, Any]]):
    result = found(CLASSES.replace("SGD(model.parameters()", "SGD(nn.Linear(8, 2).parameters()"), "--ignore", "OPT")
    assert result["headline"].startswith("The model cannot fit even one batch")


@pytest.mark.slow(reason="runs dozens of experiments")
def test_definite_mistakes_come_first(run: Diagnose):
    ended = run(NUMBERS.replace("        optimizer.zero_grad()\n", ""))
    assert ended.stderr.index("error GRD001") < ended.stderr.index("experiments")
    assert "Look at GRD001 above first" in words(ended.stderr)


def test_files_of_the_script_are_as_its_own_run_left_them(run: Diagnose, tmp_path: Path):
    saving = """
        from pathlib import Path
        torch.save(model.state_dict(), "weights.pt")
        Path("out").mkdir(exist_ok=True)
        with open("out/losses.txt", "a") as file:
            print(loss.item(), file=file)
"""
    ended = run(CLASSES.replace("        optimizer.step()\n", "        optimizer.step()\n" + saving))
    assert ended.returncode == 0, ended.stderr
    assert "no change was tried" not in ended.stderr.lower()
    assert len((tmp_path / "out" / "losses.txt").read_text().splitlines()) == 120
    assert {path.name for path in tmp_path.iterdir()} == {"train.py", "weights.pt", "out", "found.json"}
    import torch

    loaded = torch.load(tmp_path / "weights.pt")  # complete, as the last update of the run has left it
    assert loaded["0.weight"].shape == (32, 8)


@pytest.mark.slow(reason="runs dozens of experiments")
def test_loaders_with_workers_are_followed(found: Callable[..., dict[str, Any]]):
    loop = """
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(x, y), 64, shuffle=True, num_workers=1, persistent_workers=True)
for epoch in range(11):
    for inputs, labels in loader:
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
    text = CLASSES[: CLASSES.index("\nfor epoch")].replace("lr=0.2", "lr=200.0") + loop
    assert helping(found(text))[0] in {"rate 0.01", "rate 0.001", "optimizer"}


@pytest.mark.slow(reason="runs dozens of experiments")
def test_updates_written_by_hand_are_followed(found: Callable[..., dict[str, Any]]):
    text = """
import torch
torch.manual_seed(0)
x = torch.randn(256, 8)
y = 3 * x[:, :1] - 2
w, b = torch.zeros(8, 1, requires_grad=True), torch.zeros(1, requires_grad=True)
for step in range(150):
    loss = ((x @ w + b - y) ** 2).mean()
    loss.backward()
    with torch.no_grad():
        for p in (w, b):
            p -= 1e-4 * p.grad
            p.grad.zero_()
"""
    assert helping(found(text))[0] == "rate 1000"


def test_without_updates_nothing_is_tried(run: Diagnose, tmp_path: Path):
    ended = run("import torch\nprint('done')\n")
    assert ended.returncode == 0
    assert "No change was tried: no update was seen" in ended.stderr
    assert not (tmp_path / "found.json").exists()


@pytest.mark.slow(reason="runs dozens of experiments")
def test_the_exit_code_is_the_scripts(run: Diagnose):
    ended = run(CLASSES + "raise SystemExit(5)\n", "--updates", "10")
    assert ended.returncode == 5
    assert "experiments" in ended.stderr


def test_a_spent_budget_ends_the_experiments(run: Diagnose, tmp_path: Path):
    ended = run(CLASSES, "--budget", "0s")
    assert ended.returncode == 0
    assert "No change was tried: the budget is spent before the script itself had run again" in words(ended.stderr)
    assert json.loads((tmp_path / "found.json").read_text())["stopped"] == "the budget is spent"


def test_a_script_that_cannot_be_run_again_is_said(run: Diagnose):
    text = (
        "import os\nif os.path.exists('once'):\n    raise OSError('only once')\nopen('once', 'w').close()\n" + CLASSES
    )
    assert "No change was tried: OSError: only once." in words(run(text).stderr)


def test_ctrl_c_ends_the_experiments(run: Diagnose):
    text = """
import os, signal
from pathlib import Path
pid = Path("pid")
if pid.exists():
    os.kill(int(pid.read_text()), signal.SIGINT)
    signal.pause()
pid.write_text(str(os.getpid()))
"""
    ended = run(text + CLASSES)
    assert ended.returncode == 0
    assert "No change was tried: interrupted" in words(ended.stderr)


@pytest.mark.slow(reason="runs dozens of experiments")
def test_an_interrupted_script_is_diagnosed(run: Diagnose):
    interrupt = "\n        if epoch == 11:\n            raise KeyboardInterrupt\n"
    ended = run(
        CLASSES.replace("lr=0.2", "lr=200.0").replace(
            "        optimizer.step()\n", "        optimizer.step()" + interrupt
        )
    )
    assert ended.returncode == 130
    assert "The script was interrupted. Changes are tried now" in words(ended.stderr)
    assert "It can learn" in words(ended.stderr)


@pytest.mark.slow(reason="runs dozens of experiments")
def test_the_page_has_a_curve_of_each_experiment(run: Diagnose, tmp_path: Path):
    ended = run(CLASSES.replace("lr=0.2", "lr=200.0"), "--html", "page.html")
    page = (tmp_path / "page.html").read_text()
    tried = json.loads((tmp_path / "found.json").read_text())["outcomes"]
    assert ended.returncode == 0
    assert page.count("<figure>") == len(tried)
    assert "a 1000th of the learning rate: 0." in page


@pytest.mark.parametrize(("text", "seconds"), [("60s", 60), ("5m", 300), ("1h", 3600), ("90", 90), ("0.5 min", 30)])
def test_durations(text: str, seconds: float):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-3s", "5 days", "s"])
def test_other_durations_are_refused(text: str):
    with pytest.raises(InvalidConfig, match="--budget is"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("options", "environment", "message"),
    [
        ({"updates": 3}, {}, "--updates is 3"),
        ({}, {"WORLD_SIZE": "2"}, "started in 2 processes"),
        ({"json": Path("missing/found.json")}, {}, "cannot be written"),
        ({"select": ["nonsense"]}, {}, "nonsense"),
    ],
)
def test_wrong_options_are_refused_before_the_script_starts(
    options: dict[str, Any], environment: dict[str, str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "train.py").write_text("raise SystemExit(9)")
    with pytest.raises(InvalidConfig, match=message):
        diagnose(ProgramCommand(target="train.py"), DiagnoseOptions(**options))


@pytest.mark.slow(reason="runs the training of a recipe for several experiments")
def test_a_smoke_test_of_a_recipe_is_followed_by_experiments_on_its_whole_training(forker: Any, tmp_path: Path):
    ended = forker.run(
        "-m", "trueloop", "train", "tabular", "--smoke", "--diagnose", "--optim.lr", "1e-5", cwd=tmp_path
    )
    assert "smoke test" in ended.stdout or "The loss does not fall" in ended.stderr
    assert "times the learning rate." in words(ended.stderr)
    assert not list(tmp_path.iterdir()), "neither the smoke test nor the experiments write"


LIGHTNING = """
import logging, warnings
import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
torch.manual_seed(0)
x = torch.randn(640, 8)
y = (x[:, 0] + x[:, 1] > 0).long()

class Lit(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))

    def training_step(self, batch, index):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch, index):
        self.log("val_loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr={rate})

loaders = [DataLoader(TensorDataset(x[a:b], y[a:b]), batch_size=64, shuffle=a == 0) for a, b in ((0, 512), (512, 640))]
L.Trainer(
    max_epochs=15, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
    enable_checkpointing=False,
).fit(Lit(), *loaders)
"""
TRANSFORMERS = """
import os, warnings
os.environ.update(HF_HUB_OFFLINE="1", DISABLE_MLFLOW_INTEGRATION="TRUE")
warnings.filterwarnings("ignore")
import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments
from transformers.modeling_outputs import SequenceClassifierOutput

class Samples(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(640, 8, generator=generator)
    def __len__(self):
        return len(self.x)
    def __getitem__(self, i):
        return {{"x": self.x[i], "labels": (self.x[i, 0] + self.x[i, 1] > 0).long()}}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
    def forward(self, x, labels=None):
        logits = self.net(x)
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)

torch.manual_seed(0)
arguments = TrainingArguments(
    output_dir="out", num_train_epochs=12, per_device_train_batch_size=64, learning_rate={rate}, optim="sgd",
    lr_scheduler_type="constant", report_to=[], use_cpu=True, disable_tqdm=True, logging_strategy="no",
    save_strategy="no", max_grad_norm=0.0,
)
Trainer(model=Net(), args=arguments, train_dataset=Samples()).train()
"""
ACCELERATE = """
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(640, 8)
y = (x[:, 0] + x[:, 1] > 0).long()
accelerator = Accelerator(cpu=True)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr={rate})
loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for epoch in range(12):
    for inputs, labels in loader:
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.cross_entropy(model(inputs), labels))
            optimizer.step()
            optimizer.zero_grad()
"""
FRAMEWORKS = {"lightning": LIGHTNING, "transformers": TRANSFORMERS, "accelerate": ACCELERATE}


@pytest.mark.slow(reason="runs programs of whole frameworks, again for each experiment")
@pytest.mark.parametrize(("rate", "cure"), [("1e-4", "rate 1000"), ("0.2", None)], ids=["rate too low", "learns"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_loop_of_a_framework(forker_with: Any, tmp_path: Path, framework: str, rate: str, cure: str | None):
    pytest.importorskip(framework, exc_type=ImportError)
    (tmp_path / "train.py").write_text(FRAMEWORKS[framework].format(rate=rate))
    words = ("-m", "trueloop", "diagnose", "--budget", "10m", "--json", "found.json", "train.py")
    ended = forker_with(framework).run(*words, cwd=tmp_path, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    assert ended.returncode == 0, ended.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["failed"], found["stopped"], found["seeds"]) == ("", "", 2)
    assert [each.split()[0] for each in found["findings"]] == (["LRN006"] if cure else [])
    assert len(found["one_batch"]) >= 1
    assert 60 <= found["updates"] <= 120
    helping = {each["key"] for each in found["outcomes"] if each["effect"] == "helps"}
    assert (cure in helping) if cure else not helping
    assert found["headline"].startswith("It can learn" if cure else "The run learns")
