"""CKP014: a best model that is only saved in every tenth epoch."""

import pytest

HEAD = """
import torch
best_acc, best_loss = 0.0, float("inf")
"""
FAULTY = {
    "an argument": """
for epoch in range(90):
    acc = evaluate(model)
    is_best = acc > best_acc
    best_acc = max(acc, best_acc)
    if (epoch + 1) % args.save_freq == 0:
        save_checkpoint({"model": model.state_dict()}, is_best)  # <- CKP014
""",
    "a flag that a branch sets": """
class Trainer:
    def train(self):
        for epoch in range(1, self.epochs + 1):
            result = self.train_epoch(epoch)
            best = False
            if result["loss"] <= self.mnt_best:
                self.mnt_best = result["loss"]
                best = True
            if epoch % self.save_period == 0:
                self._save_checkpoint(epoch, save_best=best)  # <- CKP014
""",
    "within the branch": """
for epoch in range(90):
    loss = evaluate(model)
    if loss < best_loss:
        best_loss = loss
        if epoch % 10 == 0:
            torch.save(model.state_dict(), "best.pt")  # <- CKP014
""",
    "an if in an if": """
def fit(model, n):
    best_score = 0
    for epoch in range(90):
        score = evaluate(model)
        improved = score > best_score
        if improved:
            best_score = score
        if not epoch % n:
            torch.save(model.state_dict(), "last.pt")
            if improved:  # <- CKP014
                torch.save(model.state_dict(), "best.pt")
""",
}
CORRECT = {
    "or the best": """
for epoch in range(90):
    acc = evaluate(model)
    is_best = acc > best_acc
    best_acc = max(acc, best_acc)
    if epoch % 10 == 0 or is_best:
        save_checkpoint({"model": model.state_dict()}, is_best)
""",
    "evaluated at the same intervals": """
for epoch in range(90):
    if epoch % 10 == 0:
        acc = evaluate(model)
        is_best = acc > best_acc
        best_acc = max(acc, best_acc)
        save_checkpoint({"model": model.state_dict()}, is_best)
""",
    "saved in another place too": """
for epoch in range(90):
    acc = evaluate(model)
    is_best = acc > best_acc
    best_acc = max(acc, best_acc)
    if is_best:
        torch.save(model.state_dict(), "best.pt")
    if epoch % 10 == 0:
        save_checkpoint({"model": model.state_dict()}, is_best)
""",
    "copied": """
for epoch in range(90):
    loss = evaluate(model)
    if loss < best_loss:
        best_loss = loss
        best_state = copy.deepcopy(model.state_dict())
        if epoch % 10 == 0:
            torch.save(best_state, "best.pt")
torch.save(best_state, "best.pt")
""",
    "a regular checkpoint": """
for epoch in range(90):
    loss = evaluate(model)
    if loss < best_loss:
        best_loss = loss
        torch.save(model.state_dict(), "best.pt")
    if epoch % 10 == 0:
        torch.save(model.state_dict(), f"{epoch}.pt")
""",
    "only printed": """
for epoch in range(90):
    loss = evaluate(model)
    is_best = loss < best_loss
    best_loss = min(loss, best_loss)
    if epoch % 10 == 0:
        print(loss, is_best)
    save_checkpoint(model, is_best)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_it(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "CKP014")
