"""EVL035: weights that are chosen on the test set although there is a validation set."""

import pytest

HEAD = """
import copy
import torch
from torch.utils.data import DataLoader

train_loader = DataLoader(train_set, 32, shuffle=True)
{validation}
test_loader = DataLoader(test_set, 32)
"""
VALIDATION = "val_loader = DataLoader(val_set, 32)"
FAULTY = {
    "by the name of the value": """
best_acc = 0.0
for epoch in range(9):
    test_acc = evaluate(model, test_loader)
    if test_acc > best_acc:  # <- EVL035
        best_acc = test_acc
        torch.save(model.state_dict(), "best.pt")
""",
    "by what is evaluated": """
def main():
    best_loss = float("inf")
    for epoch in range(9):
        train(model, train_loader)
        eval_loss, eval_acc = evaluate(model, test_loader, criterion)
        if eval_loss < best_loss:  # <- EVL035
            best_loss = eval_loss
            best_state = copy.deepcopy(model.state_dict())
main()
""",
    "early stopping": """
early_stopping = EarlyStopping(patience=5)
for epoch in range(9):
    test_loss = evaluate(model, loader=test_loader)
    early_stopping(test_loss, model)  # <- EVL035
""",
    "by the name of the function": """
class Trainer:
    def fit(self):
        for epoch in range(9):
            score = self.test_epoch(epoch)
            if score > self.best_score:  # <- EVL035
                self.best_score = score
                torch.save(self.model.state_dict(), "best.pt")
""",
}
CORRECT = {
    "validation": FAULTY["by the name of the value"].replace("test_", "val_"),
    "both are followed": FAULTY["by the name of the value"]
    + """
    val_acc = evaluate(model, val_loader)
    if val_acc > best_val_acc:
        best_val_acc = val_acc
        torch.save(model.state_dict(), "chosen.pt")
""",
    "compared in another way": FAULTY["by the name of the value"]
    + """
    is_best = val_acc > best_val_acc
    keep(model, is_best)
""",
    "only printed": """
best_acc = 0.0
for epoch in range(9):
    test_acc = evaluate(model, test_loader)
    print(max(best_acc, test_acc))
""",
    "training loss": FAULTY["by the name of the value"].replace("test_acc", "train_acc").replace("test_l", "train_l"),
}
NO_VALIDATION = {
    "no validation data": "",
    "another name of the test data": "val_loader = test_loader",
    "made of the test files": "val_set = Images('data/test')",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_choices_on_the_test_set(lint_reports, script):
    lint_reports(HEAD.format(validation=VALIDATION) + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_other_choices(lint_codes, script):
    assert "EVL035" not in lint_codes(HEAD.format(validation=VALIDATION) + script)


@pytest.mark.parametrize("validation", NO_VALIDATION.values(), ids=NO_VALIDATION)
def test_lint_accepts_programs_without_validation_data(lint_codes, validation):
    assert "EVL035" not in lint_codes(HEAD.format(validation=validation) + FAULTY["by the name of the value"])


BOTH = """
import torch

def fit(model, train_loader, val_loader, test_loader, patience=5):
    best_loss = 1e9
    for epoch in range(99):
        train(model, train_loader)
        loss = evaluate(model, val_loader)
        if loss < best_loss:
            best_loss = loss
            torch.save(model.state_dict(), "best.pt")
    model.load_state_dict(torch.load("best.pt"))
    return evaluate(model, test_loader)

fit(net, loader, test, test)  # <- EVL035
"""
IN_CLASS = """
import torch

class Experiment:
    def __init__(self, x_train, x_validation, x_test):
        self.x_train, self.x_validation, self.x_test = x_train, x_validation, x_test
    def run(self):
        for epoch in range(99):
            self.train(self.x_train)
            if self.check_early_stopping(self.evaluate(self.x_validation)):
                break
        print(self.evaluate(self.x_test))
Experiment(X_train, x_validation=X_test, x_test=X_test).run()  # <- EVL035
"""


@pytest.mark.parametrize("script", [BOTH, IN_CLASS, BOTH.replace("test, test)", "data.test_set, data.test_set)")])
def test_lint_reports_test_data_that_is_passed_as_both(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize(
    "changes",
    [
        {"test, test)": "val, test)"},
        {"test, test)": "held_out, held_out)"},
        {"test, test)": "test_set.copy(), test_set)"},
        {"val_loader": "loader"},
        {"best_loss": "lowest", ", patience=5": "", '"best.pt"': '"x.pt"'},
    ],
)
def test_lint_ignores_other_arguments(lint_codes, changes):
    script = BOTH
    for old, new in changes.items():
        assert old in script
        script = script.replace(old, new)
    assert "EVL035" not in lint_codes(script)
