"""CKP013: weights that are chosen by the training loss."""

import pytest

EPOCH = """
import torch
import torch.nn.functional as F

def fit(model, train_loader, val_loader, test_loader, x_val, y_val, optimizer):
    best, waited = float("inf"), 0
    best_train = float("inf")
    for epoch in range(50):
        model.train()
        total = 0.0
        for x, y in train_loader:
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        train_loss = total / len(train_loader)
        model.eval()
"""


def program(lines: str) -> str:
    return EPOCH + "".join(f"        {line}\n" for line in lines.strip("\n").splitlines())


EVALUATED = "val_loss = evaluate(model, val_loader)\nprint(train_loss, val_loss)\n"
CHOSEN = """
if train_loss < best:  # <- CKP013
    best = train_loss
    torch.save(model.state_dict(), "best.pt")
"""
WAITED = """
if total < best:  # <- CKP013
    best, waited = total, 0
else:
    waited += 1
    if waited > 5:
        break
"""
GOOD = """
if val_loss < best:
    best = val_loss
    torch.save(model.state_dict(), "best.pt")
"""
FAULTY = {
    "a saved model": program(EVALUATED + CHOSEN),
    "early stopping": program(
        "with torch.no_grad():\n    vl = F.mse_loss(model(x_val), y_val).item()\nlog(vl)\n" + WAITED
    ),
    "an object": program(
        EVALUATED + "early_stopping(train_loss, model)  # <- CKP013\nif early_stopping.early_stop:\n    break\n"
    ),
    "collected": program("valid_loss = validate(model)\nhistory.append((total, valid_loss))\n" + CHOSEN),
}
CORRECT = {
    "the validation loss": program(EVALUATED + GOOD),
    "both": program(
        EVALUATED + GOOD + 'if train_loss < best_train:\n    best_train = train_loss\n    torch.save(model, "t.pt")\n'
    ),
    "no validation": program(CHOSEN.replace("  # <- CKP013", "")),
    "a test loss": program(
        "test_loss = evaluate(model, test_loader)\nprint(test_loss)\n" + CHOSEN.replace("  # <- CKP013", "")
    ),
    "a scheduler": program(EVALUATED + "scheduler.step(val_loss)\n" + CHOSEN.replace("  # <- CKP013", "")),
    "only the best number": program(EVALUATED + "if train_loss < best:\n    best = train_loss\n"),
    "early stopping by validation": program(
        EVALUATED + "stopper(val_loss, model)\n" + CHOSEN.replace("  # <- CKP013", "")
    ),
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_a_choice_by_the_training_loss(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(script, "CKP013")
