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
