"""CKP009: best values that are never updated or never beaten."""

import pytest

FAULTY = {
    "the best loss is never updated": """
best_loss = float("inf")
for epoch in range(9):
    val_loss = evaluate(model)
    if val_loss < best_loss:  # <- CKP009
        torch.save(model.state_dict(), "best.pt")
""",
    "an attribute is never updated": """
class Trainer:
    def __init__(self, model):
        self.model = model
        self.best_loss = float("inf")
    def epoch_ended(self, loss):
        if loss < self.best_loss:  # <- CKP009
            torch.save(self.model.state_dict(), "best.pt")
""",
    "only the state is stored": """
best_acc = 0
for epoch in range(9):
    acc = evaluate(model)
    if acc > best_acc:  # <- CKP009
        best_state = copy.deepcopy(model.state_dict())
""",
    "set back in every epoch": """
for epoch in range(9):
    best_loss = 1e10
    val_loss = evaluate(model)
    if val_loss < best_loss:  # <- CKP009
        best_loss = val_loss
        torch.save(model.state_dict(), "best.pt")
""",
    "above infinity": """
best_loss = np.inf
for epoch in range(9):
    val_loss = evaluate(model)
    if val_loss > best_loss:  # <- CKP009
        best_loss = val_loss
        torch.save(model.state_dict(), "best.pt")
""",
    "below minus infinity, and another condition": """
best_score = -float("inf")
for epoch in range(9):
    score = evaluate(model)
    if epoch > 3 and score < best_score:  # <- CKP009
        best_score = score
        torch.save(model.state_dict(), "best.pt")
""",
    "a loss below zero": """
best_val_loss = 0
for epoch in range(9):
    val_loss = evaluate(model)
    if val_loss < best_val_loss:  # <- CKP009
        best_val_loss = val_loss
        torch.save(model.state_dict(), "best.pt")
""",
    "names against the comparison": """
def keep(val_loss, best_loss, model):
    if val_loss > best_loss:  # <- CKP009
        best_loss = val_loss
        torch.save(model.state_dict(), "best.pt")
    return best_loss
""",
}

CORRECT = {
    "updated in the same branch": """
best_loss = float("inf")
for epoch in range(9):
    val_loss = evaluate(model)
    if val_loss < best_loss:
        best_loss = val_loss
        torch.save(model.state_dict(), "best.pt")
""",
    "updated with min": """
best_loss = float("inf")
for epoch in range(9):
    val_loss = evaluate(model)
    if val_loss < best_loss:
        torch.save(model.state_dict(), "best.pt")
    best_loss = min(best_loss, val_loss)
""",
    "the other arm updates": """
best_loss, waited = float("inf"), 0
for epoch in range(9):
    val_loss = evaluate(model)
    if val_loss > best_loss:
        waited += 1
        if waited > 5:
            break
    else:
        best_loss, waited = val_loss, 0
        torch.save(model.state_dict(), "best.pt")
""",
    "a global variable, updated elsewhere": """
best_acc = 0
def test(epoch):
    global best_acc
    acc = run(epoch)
    if acc > best_acc:
        torch.save(model.state_dict(), "best.pt")
        best_acc = acc
""",
    "one best value per fold": """
for fold in range(5):
    best_acc = 0
    for epoch in range(9):
        acc = evaluate(model)
        if acc > best_acc:
            best_acc = acc
            torch.save(model.state_dict(), f"best{fold}.pt")
""",
    "the worst case of an attack": """
best_loss = -1e9
for restart in range(5):
    loss = attack(model, x)
    if loss > best_loss:
        best_loss = loss
        best_adversarial = x.clone()
""",
    "an item of a dictionary": """
state = {"best": float("inf")}
for epoch in range(9):
    val_loss = evaluate(model)
    if val_loss < state["best"]:
        state["best"] = val_loss
        torch.save(model.state_dict(), "best.pt")
""",
    "continued from a checkpoint": """
best_acc = 0
if resume:
    best_acc = torch.load("last.pt", weights_only=True)["best_acc"]
for epoch in range(9):
    acc = evaluate(model)
    if acc > best_acc:
        best_acc = acc
        torch.save(model.state_dict(), "best.pt")
""",
    "a loss that starts at zero in the first epoch only": """
best_loss = 0.0
for epoch in range(9):
    val_loss = evaluate(model)
    if epoch == 0 or val_loss < best_loss:
        best_loss = val_loss
        torch.save(model.state_dict(), "best.pt")
""",
    "one comparison, not repeated": """
best_acc = 0.9
acc = evaluate(model)
if acc > best_acc:
    torch.save(model.state_dict(), "good.pt")
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(script)
