"""CKP004: models that are exported, traced or served in train mode."""

import pytest

HEAD = """
import os, tempfile, io, warnings
import torch
from torch import nn

warnings.filterwarnings("ignore")
folder = tempfile.mkdtemp()
path = os.path.join(folder, "model")

class Net(nn.Module):
    def __init__(self, rate=0.3):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(rate), nn.Linear(8, 2))

    def forward(self, x):
        return self.layers(x)

model = Net()
x = torch.randn(3, 4)
"""

FAULTY = {
    "traced after training": """
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(2):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
traced = torch.jit.trace(model, x)  # <- CKP004
traced.save(path)
""",
    "saved by the function, in another function": """
def ship(net: Net, where):
    traced = torch.jit.trace(net, torch.randn(2, 4), check_trace=False)  # <- CKP004
    torch.jit.save(traced, where)
ship(model, path)
""",
    "exported, in a class": """
class Exporter:
    def __init__(self):
        self.net = Net(rate=0.0)

    def run(self):
        program = torch.export.export(self.net, (torch.randn(3, 4),))  # <- CKP004
        torch.export.save(program, path)
Exporter().run()
""",
    "set back to train mode": """
model.eval()
model(x)
model.train()
torch.jit.trace(model, x).save(path)  # <- CKP004
""",
    "eval comes too late": """
traced = torch.jit.trace(model, x)  # <- CKP004
traced.eval()
model.eval()
traced.save(path)
""",
}

CORRECT = {
    "eval before": "model.eval()\ntorch.jit.trace(model, x).save(path)\n",
    "eval in the same line": "torch.export.save(torch.export.export(model.eval(), (x,)), path)\n",
    "eval where it is made": "net = Net().eval()\ntorch.jit.trace(net, x).save(path)\n",
    "the mode changes nothing": """
plain = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Dropout(0.0))
torch.jit.trace(plain, x).save(path)
""",
    "only read": "print(torch.jit.trace(model, x, check_trace=False).graph)\n",
    "to go on training": "program = torch.export.export(model, (x,))\nnet = program.module()\nprint(net(x).shape)\n",
    "scripted, whose mode can be set later": "scripted = torch.jit.script(model)\nscripted.save(path)\n",
    "eval in a function": """
def prepare(net):
    net.eval()
    return net
torch.jit.trace(prepare(model), x).save(path)
""",
    "on a condition": """
if os.environ.get("EVALUATE", "yes"):
    model.eval()
torch.jit.trace(model, x).save(path)
""",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_the_marked_line(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_ignores_correct_programs(run, script):
    ran = run(HEAD + script)
    assert "CKP004" not in {found.code for found in ran.findings}


# Lint ------------------------------------------------------------------------------------------------------------

LINT_MISSES = {"saved by the function, in another function", "exported, in a class", "eval comes too late"}
"""Another caller, or code that lint cannot read, may have set the mode."""

LINT_FINDS = {
    "to ONNX by torch.export": """
torch.onnx.export(model, (x,), path, dynamo=True)  # <- CKP004
""",
    "to ONNX, with the default exporter": """
torch.onnx.export(model, x, path, opset_version=17)  # <- CKP004
""",
    "imported by name": """
from torch.jit import trace
scripted = trace(model, x)  # <- CKP004
torch.jit.save(scripted, path)
""",
    "in main": """
def main():
    net = Net()
    net.load_state_dict(torch.load(path))
    program = torch.export.export(net, (x,))  # <- CKP004
    torch.export.save(program, "model.pt2")

main()
""",
    "served": """
from fastapi import FastAPI
app = FastAPI()

@app.post("/predict")
def predict(values: list):
    with torch.no_grad():
        return model(torch.tensor(values)).tolist()  # <- CKP004
""",
    "served through a function": """
from flask import Flask, jsonify, request
app = Flask(__name__)
network = Net()

def score(values):
    with torch.inference_mode():
        return network(values).argmax(1).tolist()  # <- CKP004

@app.route("/predict", methods=["POST"])
def predict():
    return jsonify(score(torch.tensor(request.json)))
""",
}

LINT_IGNORES = {
    "to ONNX by the older way": "torch.onnx.export(model, x, path, dynamo=False)\n",
    "to ONNX in train mode, explicitly": """
torch.onnx.export(model, x, path, training=torch.onnx.TrainingMode.TRAINING)
""",
    "of an argument": """
def export(net, where):
    torch.export.save(torch.export.export(net, (x,)), where)
""",
    "of another file": """
from models import build
net = build()
torch.jit.trace(net, x).save(path)
""",
    "passed to another function": """
from helpers import prepare
prepare(model)
torch.jit.trace(model, x).save(path)
""",
    "served in eval mode": """
from fastapi import FastAPI
app = FastAPI()
model.eval()

@app.post("/predict")
def predict(values: list):
    with torch.no_grad():
        return model(torch.tensor(values)).tolist()
""",
    "served, eval at the start": """
from fastapi import FastAPI
app = FastAPI()

@app.on_event("startup")
def start():
    model.load_state_dict(torch.load(path))
    model.eval()

@app.post("/predict")
def predict(values: list):
    with torch.no_grad():
        return model(torch.tensor(values)).tolist()
""",
    "built for each request": """
from fastapi import FastAPI
app = FastAPI()

@app.post("/predict")
def predict(values: list, model):
    return model(values)
""",
    "no request": """
class Registry:
    def post(self, name):
        return lambda function: function
app = Registry()

@app.post("/predict")
def predict(values):
    with torch.no_grad():
        return model(torch.tensor(values)).tolist()
""",
}


@pytest.mark.parametrize("name", [*(FAULTY.keys() - LINT_MISSES), *LINT_FINDS])
def test_lint_reports_the_marked_line(lint_reports, name):
    lint_reports(HEAD + {**FAULTY, **LINT_FINDS}[name])


@pytest.mark.parametrize("name", [*CORRECT, *LINT_IGNORES])
def test_lint_ignores_correct_and_undecidable_programs(lint_is_clean, name):
    lint_is_clean(HEAD + {**CORRECT, **LINT_IGNORES}[name], "CKP004")
