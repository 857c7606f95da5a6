"""CKP009: best values that are never updated or never beaten."""

import re

import pytest

FAULTY = {
    "a loss in the comparison of an accuracy": """
best = 0.0
for epoch in range(9):
    val_loss = evaluate(model)
    if val_loss > best:  # <- CKP009
        best = val_loss
        torch.save(model.state_dict(), "best.pt")
""",
    "an accuracy that shall fall": """
best_so_far = float("inf")
for epoch in range(9):
    accuracy = evaluate(model)
    if accuracy < best_so_far:  # <- CKP009
        best_so_far = accuracy
        best_state = copy.deepcopy(model.state_dict())
""",
    "another loss is kept": """
best = float("inf")
for epoch in range(9):
    train_loss, val_loss = fit(model), evaluate(model)
    if val_loss < best:
        best = train_loss  # <- CKP009
        torch.save(model.state_dict(), "best.pt")
""",
    "the attribute of another object is kept": """
best_reward = -float("inf")
for leaf, root in trees:
    if leaf.reward > best_reward:
        best_reward = root.reward  # <- CKP009
        torch.save(leaf.state, "best.pt")
""",
    "the loss is kept as the best accuracy": """
class Trainer:
    def __init__(self):
        self.best_acc = 0.0
    def epoch_ended(self, model, val_loss, val_acc):
        if val_acc > self.best_acc:
            self.best_acc = val_loss  # <- CKP009
            torch.save(model.state_dict(), "best.pt")
""",
    "replaced before it is compared": """
best_acc = 0.0
for epoch in range(9):
    acc = evaluate(model)
    best_acc = max(best_acc, acc)
    if acc > best_acc:  # <- CKP009
        torch.save(model.state_dict(), "best.pt")
""",
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
    "a variable in capitals, from infinity": """
BEST_LOSS = float("inf")
def validate(model):
    val_loss = evaluate(model)
    if val_loss < BEST_LOSS:  # <- CKP009
        torch.save(model.state_dict(), "best.pt")
for epoch in range(9):
    validate(model)
""",
    "a variable in capitals, from zero": """
BEST_ACC = 0.0
for epoch in range(9):
    acc = evaluate(model)
    if acc > BEST_ACC:  # <- CKP009
        torch.save(model.state_dict(), "best.pt")
""",
    "from an ordinary number": """
best_acc = 0.5
for epoch in range(9):
    acc = evaluate(model)
    if acc > best_acc:  # <- CKP009
        torch.save(model.state_dict(), "best.pt")
""",
    "an accuracy on the target domain": """
best_target_ratio = 0.3
for epoch in range(9):
    target_ratio = evaluate(model)
    if target_ratio > best_target_ratio:  # <- CKP009
        torch.save(model.state_dict(), "best.pt")
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
    "the negative of a loss": """
best = -float("inf")
for epoch in range(9):
    score = -evaluate(model)
    if score > best:
        best = score
        torch.save(model.state_dict(), "best.pt")
""",
    "the worst loss": """
best_attack = 0.0
for epoch in range(9):
    value = evaluate(model)
    if value > best_attack:
        best_attack = value
        torch.save(noise, "attack.pt")
""",
    "a share of games that the best network must lose": """
BEST_NETWORK_SHARE = 0.55
for step in range(900):
    train(network)
    if step % 100 == 0:
        share = play(network, best_network, games=40)
        if share > BEST_NETWORK_SHARE:
            best_network.load_state_dict(network.state_dict())
            torch.save(network.state_dict(), "best.pt")
""",
    "a limit in a class": """
class Arena:
    BEST_SHARE = 0.6
    def judge(self, network, best):
        won = play(network, best)
        if won >= self.BEST_SHARE:
            best.load_state_dict(network.state_dict())
            torch.save(network.state_dict(), "best.pt")
""",
    "a limit that is final": """
best_share: Final[float] = 0.55
def judge(network, best):
    won = play(network, best)
    if won >= best_share:
        torch.save(network.state_dict(), "best.pt")
for step in range(900):
    judge(network, best)
""",
    "a threshold": """
best_threshold = 0.9
for epoch in range(9):
    acc = evaluate(model)
    if acc > best_threshold:
        torch.save(model.state_dict(), f"good_{epoch}.pt")
""",
    "an option": """
settings = {"games": 40}
settings["BEST_RATIO"] = 0.55
for step in range(900):
    ratio = play(network, best)
    if ratio > settings["BEST_RATIO"]:
        torch.save(network.state_dict(), "best.pt")
""",
    "an attribute of the best object": """
best_leaf, best_reward = None, -float("inf")
for leaf in leaves:
    if leaf.reward > best_reward:
        best_leaf = leaf
        best_reward = best_leaf.reward
        torch.save(best_leaf.state, "best.pt")
""",
    "set by its name": """
class Trainer:
    def __init__(self):
        self.best_loss = float("inf")
    def keep(self, **values):
        for name, value in values.items():
            setattr(self, name, value)
    def epoch_ended(self, model, val_loss):
        if val_loss < self.best_loss:
            self.keep(best_loss=val_loss)
            torch.save(model.state_dict(), "best.pt")
""",
    "updated in a dictionary": """
state = {"best_loss": float("inf"), "epoch": 0}
for epoch in range(9):
    val_loss = evaluate(model)
    if val_loss < state["best_loss"]:
        state.update(best_loss=val_loss, epoch=epoch)
        torch.save(model.state_dict(), "best.pt")
""",
    "two best values": """
best_loss, best_acc = float("inf"), 0.0
for epoch in range(9):
    loss, acc = evaluate(model)
    if loss < best_loss:
        best_loss, best_acc = loss, acc
        torch.save(model.state_dict(), "best.pt")
""",
    "a converted value": """
best_loss = float("inf")
for epoch in range(9):
    val_loss = evaluate(model)
    mean_loss = val_loss.mean()
    if mean_loss < best_loss:
        best_loss = mean_loss.item()
        torch.save(model.state_dict(), "best.pt")
    current_loss = val_loss.mean().item()
    if current_loss < best_loss:
        best_loss = current_loss
        torch.save(model.state_dict(), "best.pt")
""",
    "equal to the best value after max": """
best_acc = 0.0
for epoch in range(9):
    acc = evaluate(model)
    best_acc = max(best_acc, acc)
    if acc >= best_acc:
        torch.save(model.state_dict(), "best.pt")
""",
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
    "a perplexity in a variable with the name of an accuracy": """
best_acc = 10000.0
for epoch in range(9):
    losses = evaluate(model)
    if np.exp(losses.avg) < best_acc:
        torch.save(model.state_dict(), "best.pt")
        best_acc = np.exp(losses.avg)
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


FIT = """
for epoch in range(9):
    train(model)
    val_loss, val_acc = evaluate(model, loader), accuracy(model, loader)
"""

STOPPERS = {
    "mode": """
class EarlyStopping:
    def __init__(self, patience=5, mode="min"):
        self.patience, self.mode = patience, mode
        self.best, self.bad = None, 0
    def step(self, value):
        if self.best is None or self.is_better(value, self.best):
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        return self.bad > self.patience
    def is_better(self, a, best):
        if self.mode == "min":
            return a < best
        return a > best
""",
    "sign": """
class EarlyStopping:
    def __init__(self, patience=5, mode="min"):
        self.patience = patience
        self.sign = 1 if mode == "min" else -1
        self.best, self.bad = float("inf"), 0
    def step(self, value):
        score = self.sign * value
        if score < self.best - 1e-4:
            self.best = score
            self.bad = 0
            return False
        self.bad += 1
        return self.bad > self.patience
""",
    "operator": """
class EarlyStopping:
    def __init__(self, patience=5, *, mode="min"):
        self.patience = patience
        self.better = {"min": operator.lt, "max": operator.gt}[mode]
        if mode == "max":
            self.best_value = -np.inf
        else:
            self.best_value = np.inf
    def step(self, current):
        improved = self.better(current, self.best_value)
        if improved:
            self.best_value = current
            self.wait = 0
        else:
            self.wait += 1
        return self.wait >= self.patience
""",
    "two comparisons": """
class EarlyStopping:
    def __init__(self, patience=5, mode="min", min_delta=0.0):
        self.patience, self.lower_is_better, self.min_delta = patience, mode == "min", min_delta
        self.best_score = None
    def step(self, metric):
        if self.best_score is None:
            self.best_score = metric
            return False
        better = metric < self.best_score - self.min_delta if self.lower_is_better else metric > self.best_score
        if not better:
            self.counter += 1
        else:
            self.best_score = metric
        return self.counter > self.patience
""",
}


@pytest.mark.parametrize("stopper", STOPPERS.values(), ids=STOPPERS)
@pytest.mark.parametrize(
    ("arguments", "value", "is_wrong"),
    [
        ("", "val_acc", True),
        ("patience=3", "val_loss", False),
        ("3, mode='max'", "val_acc", False),
        ("mode='max'", "val_loss", True),
        ("mode=chosen", "val_acc", False),
        ("", "-val_acc", False),
        ("", "1 - val_acc", False),
        ("**settings", "val_acc", False),
        ("", "score", False),
    ],
)
def test_lint_reports_stoppers_with_the_other_mode(lint_reports, lint_is_clean, stopper, arguments, value, is_wrong):
    script = f"{stopper}\nstopper = EarlyStopping({arguments})\n{FIT}    if stopper.step({value}):"
    if is_wrong:
        lint_reports(f"{script}  # <- CKP009\n        break\n")
    else:
        lint_is_clean(f"{script}\n        break\n", "CKP009")


def test_lint_reports_a_stopper_whose_parameters_have_no_names(lint_reports):
    stopper = next(iter(STOPPERS.values())).replace('mode="min")', 'mode="min", /)')
    lint_reports(
        f"{stopper}\nstopper = EarlyStopping()\n{FIT}    if stopper.step(val_acc):  # <- CKP009\n        break\n"
    )


KEEPERS = {
    "always the lowest": (
        """
class BestModel:
    lowest = float("inf")
    def __call__(self, value, model):
        if self.lowest > value:
            self.lowest = value
            self.state = copy.deepcopy(model.state_dict())
keeper = BestModel()
""",
        "keeper(val_acc, model)",
    ),
    "the negated loss": (
        """
class EarlyStopping:
    def __init__(self, patience=7, delta=0):
        self.patience, self.delta, self.counter = patience, delta, 0
        self.best_score = None
    def __call__(self, val_loss, model):
        score = -val_loss
        if self.best_score is None:
            self.best_score = score
            self.save_checkpoint(val_loss, model)
        elif score < self.best_score + self.delta:
            self.counter += 1
        else:
            self.best_score = score
            self.save_checkpoint(val_loss, model)
    def save_checkpoint(self, val_loss, model):
        torch.save(model.state_dict(), "best.pt")
        self.val_loss_min = val_loss
keeper = EarlyStopping(patience=3)
""",
        "keeper(val_acc, model)",
    ),
    "a monitored item, in a trainer": (
        """
class Checkpoint:
    def __init__(self, monitor, mode="max"):
        self.monitor, self.mode, self.best = monitor, mode, None
    def update(self, logs, model):
        value = logs[self.monitor]
        if self.mode == "max":
            improved = self.best is None or value > self.best
        else:
            improved = self.best is None or value < self.best
        if improved:
            self.best = value
            torch.save(model.state_dict(), "best.pt")
keeper = Checkpoint("val_loss")
""",
        "keeper.update({'val_loss': val_loss}, model)",
    ),
}


@pytest.mark.parametrize(("keeper", "call"), KEEPERS.values(), ids=KEEPERS)
def test_lint_reports_the_worst_value_that_is_kept(lint_reports, lint_is_clean, keeper, call):
    lint_reports(f"{keeper}{FIT}    {call}  # <- CKP009\n")
    other = {"val_acc": "val_loss", "val_loss": "val_acc"}
    correct = re.sub("val_acc|val_loss", lambda found: other[found[0]], call)
    keeper = keeper.replace('Checkpoint("val_loss")', 'Checkpoint("val_acc")')
    lint_is_clean(f"{keeper}{FIT}    {correct}\n", "CKP009")


def test_a_search_for_the_worst_case_is_not_reported(lint_is_clean):
    keeper, call = KEEPERS["always the lowest"]
    lint_is_clean(f"{keeper.replace('BestModel', 'WorstCase')}{FIT}    {call}\n", "CKP009")


LOCAL = {
    "a function": """
def check(model, loader, best_acc):
    acc = evaluate(model, loader)
    if acc > best_acc:  # <- CKP009
        best_acc = acc
        torch.save(model.state_dict(), "best.pt")
best_acc = 0.0
for epoch in range(9):
    train(model)
    check(model, val_loader, best_acc)
""",
    "the accuracy is returned, by keyword": """
def validate(model, best=0.0):
    loss = evaluate(model)
    if loss < best:  # <- CKP009
        best = loss
        save_checkpoint(model)
    return loss
def main():
    lowest = 1e9
    for epoch in range(9):
        losses.append(validate(model, best=lowest))
""",
    "a method": """
class Trainer:
    def keep(self, acc, best_acc):
        if acc > best_acc:  # <- CKP009
            print("better")
            best_acc = acc
            self.save_model()
    def fit(self):
        best_acc = 0
        while self.epoch < 10:
            self.keep(self.validate(), best_acc)
""",
}
NOT_LOCAL = {
    "returned": """
def check(model, best_acc):
    acc = evaluate(model)
    if acc > best_acc:
        best_acc = acc
        torch.save(model.state_dict(), "best.pt")
    return best_acc
best_acc = 0.0
for epoch in range(9):
    best_acc = check(model, best_acc)
""",
    "the loop updates it too": """
def check(model, best_acc):
    acc = evaluate(model)
    if acc > best_acc:
        best_acc = acc
        torch.save(model.state_dict(), "best.pt")
    return acc
best_acc = 0.0
for epoch in range(9):
    acc = check(model, best_acc)
    best_acc = max(acc, best_acc)
""",
    "the function has the loop": """
def fit(model, best_acc):
    for epoch in range(9):
        acc = evaluate(model)
        if acc > best_acc:
            best_acc = acc
            torch.save(model.state_dict(), "best.pt")
best_acc = 0.0
for fold in range(9):
    fit(models[fold], best_acc)
""",
    "called once": """
def check(model, best_acc):
    acc = evaluate(model)
    if acc > best_acc:
        best_acc = acc
        torch.save(model.state_dict(), "best.pt")
best_acc = 0.5
check(model, best_acc)
""",
    "stored in an object": """
def check(model, state, best_acc):
    acc = evaluate(model)
    if acc > best_acc:
        best_acc = acc
        torch.save(model.state_dict(), "best.pt")
    state["best"] = best_acc
best_acc = 0.0
for epoch in range(9):
    check(model, state, best_acc)
""",
}


@pytest.mark.parametrize("script", LOCAL.values(), ids=LOCAL)
def test_lint_reports_best_values_that_the_caller_never_gets(lint_reports, script):
    lint_reports("import torch\n" + script)


@pytest.mark.parametrize("script", NOT_LOCAL.values(), ids=NOT_LOCAL)
def test_lint_accepts_best_values_that_the_caller_gets(lint_is_clean, script):
    lint_is_clean("import torch\n" + script)
