"""ENV005: requests that run with gradients enabled."""

import pytest

HEAD = """
import torch
from torch import nn
from fastapi import FastAPI, Request
from flask import Flask, jsonify, request

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x)

app = FastAPI()
model = Net()
model.load_state_dict(torch.load("model.pt"))
model.eval()
"""

FAULTY = {
    "a route": """
@app.post("/predict")
def predict(values: list):
    return model(torch.tensor(values)).tolist()  # <- ENV005
""",
    "asynchronous, in a branch": """
@app.post("/predict")
async def predict(request: Request):
    values = await request.json()
    if not values:
        return []
    scores = model(torch.tensor(values))  # <- ENV005
    return scores.softmax(1).tolist()
""",
    "Flask, through functions": """
web = Flask(__name__)
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to("cpu").eval()

def score(batch):
    return net(batch).argmax(dim=1)  # <- ENV005

def answer(values):
    batch = torch.tensor(values)
    return score(batch).tolist()

@web.route("/predict", methods=["POST"])
def predict():
    return jsonify(answer(request.json))
""",
    "one of two": """
@app.get("/one")
def one():
    with torch.no_grad():
        return model(torch.zeros(1, 4)).tolist()

@app.get("/two")
def two():
    return model(torch.zeros(1, 4)).tolist()  # <- ENV005
""",
    "in a try": """
@app.post("/predict")
def predict(values: list):
    try:
        return {"scores": model(torch.tensor(values)).tolist()}  # <- ENV005
    except RuntimeError as error:
        return {"error": str(error)}
""",
}

CORRECT = {
    "inference mode": """
@app.post("/predict")
def predict(values: list):
    with torch.inference_mode():
        return model(torch.tensor(values)).tolist()
""",
    "a decorator": """
@app.post("/predict")
@torch.no_grad()
def predict(values: list):
    return model(torch.tensor(values)).tolist()
""",
    "a decorated function on the way": """
@torch.inference_mode()
def score(batch):
    return model(batch)

@app.post("/predict")
def predict(values: list):
    return score(torch.tensor(values)).tolist()
""",
    "called under no_grad": """
def score(batch):
    return model(batch)

@app.post("/predict")
def predict(values: list):
    with torch.no_grad():
        return score(torch.tensor(values)).tolist()
""",
    "another context manager, which may do it": """
from contextlib import ExitStack
@app.post("/predict")
def predict(values: list):
    with ExitStack() as stack:
        return model(torch.tensor(values)).tolist()
""",
    "switched off for the program": """
torch.set_grad_enabled(False)

@app.post("/predict")
def predict(values: list):
    return model(torch.tensor(values)).tolist()
""",
    "frozen": """
for parameter in model.parameters():
    parameter.requires_grad = False

@app.post("/predict")
def predict(values: list):
    return model(torch.tensor(values)).tolist()
""",
    "explained": """
@app.post("/explain")
def explain(values: list):
    x = torch.tensor(values, requires_grad=True)
    (gradient,) = torch.autograd.grad(model(x).amax(), x)
    return gradient.tolist()
""",
    "within the model": """
class Quiet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    @torch.no_grad()
    def forward(self, x):
        return self.layer(x)

quiet = Quiet()

@app.post("/predict")
def predict(values: list):
    return quiet(torch.tensor(values)).tolist()
""",
    "no request": """
def predict(values: list):
    return model(torch.tensor(values)).tolist()
""",
    "an argument, not a global model": """
@app.post("/predict")
def predict(values: list, model):
    return model(torch.tensor(values)).tolist()
""",
    "exchanged while it runs": """
@app.post("/load")
def load(path: str):
    global model
    model = torch.jit.load(path)

@app.post("/predict")
def predict(values: list):
    return model(torch.tensor(values)).tolist()
""",
}


@pytest.mark.parametrize("name", FAULTY)
def test_lint_reports_faulty_scripts(lint_reports, name):
    lint_reports(HEAD + FAULTY[name])


def test_the_fix_is_inference_mode(lint_reports):
    (found,) = lint_reports(HEAD + FAULTY["asynchronous, in a branch"], fixes=True)
    assert "inference_mode" in str(found.autofix)


@pytest.mark.parametrize("name", CORRECT)
def test_lint_accepts_correct_scripts(lint_is_clean, name):
    lint_is_clean(HEAD + CORRECT[name], "ENV005")
