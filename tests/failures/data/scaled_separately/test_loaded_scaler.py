"""DAT013: a scaler that is read from a file and fitted again."""

import pytest

HEAD = """
import pickle
import joblib
import torch
from sklearn.preprocessing import StandardScaler
"""
FAULTY = {
    "a function": """
def predict(model, x):
    with open("scaler.pkl", "rb") as file:
        scaler = pickle.load(file)
    return model(torch.tensor(scaler.fit_transform(x)))  # <- DAT013
""",
    "several, from a function": """
def load(folder):
    x_scaler, y_scaler = joblib.load(folder)
    return x_scaler, y_scaler

def predict(model, folder, x):
    x_scaler, y_scaler = load(folder)
    return y_scaler.inverse_transform(model(torch.tensor(x_scaler.fit_transform(x))))  # <- DAT013
""",
    "an attribute": """
class Predictor:
    def __init__(self, model, path):
        self.model, self.path = model, path
        self.prep = joblib.load(path)

    def __call__(self, x):
        return self.model(torch.tensor(self.prep.fit_transform(x)))  # <- DAT013
""",
}
CORRECT = {
    "transform": FAULTY["a function"].replace("fit_transform", "transform").replace("  # <- DAT013", ""),
    "created and fitted in the training": """
def load():
    return joblib.load("scaler.pkl")

def train(x):
    scaler = StandardScaler()
    x = scaler.fit_transform(x)
    joblib.dump(scaler, "scaler.pkl")
    return x

def predict(model, x):
    scaler = load()
    return model(torch.tensor(scaler.transform(x)))
""",
    "created if there is no file": """
import os
def prepare(x):
    if os.path.exists("scaler.pkl"):
        scaler = joblib.load("scaler.pkl")
    else:
        scaler = StandardScaler()
    return scaler.fit_transform(x)
""",
    "an argument": """
saved = joblib.load("scaler.pkl")
def train(scaler, x):
    return scaler.fit_transform(x)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_loaded_scalers_that_are_fitted(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "DAT013")
