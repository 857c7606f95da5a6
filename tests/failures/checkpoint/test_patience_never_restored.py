"""CKP010: counters of early stopping that are never set back."""

import pytest

FAULTY = {
    "the comparison is returned": """
class EarlyStopping:
    def __init__(self, patience, min_delta=0.0):
        self.patience, self.min_delta = patience, min_delta
        self.best, self.counter = float("inf"), 0
    def step(self, value):
        if value < self.best - self.min_delta:
            self.best = value
        else:
            self.counter += 1  # <- CKP010
        return self.counter >= self.patience
""",
    "the comparison is the flag": """
class Stopper:
    def __init__(self, patience):
        self.patience, self.best, self.bad, self.stop = patience, 0.0, 0, False
    def update(self, accuracy):
        if accuracy > self.best:
            self.best = accuracy
        else:
            self.bad += 1  # <- CKP010
        self.stop = self.bad >= self.patience
""",
    "the condition of the loop": """
best, waited, patience, epoch = float("inf"), 0, 5, 0
while epoch < 99 and waited < patience:
    val_loss = evaluate(model)
    if val_loss < best:
        best = val_loss
    else:
        waited += 1  # <- CKP010
    epoch += 1
""",
    "the limit with another condition": """
best, bad = float("inf"), 0
for epoch in range(99):
    val_loss = evaluate(model)
    if val_loss < best:
        best = val_loss
    else:
        bad += 1  # <- CKP010
    if bad > 5 and epoch > 20:
        break
""",
    "a generator that raises": """
def watcher(patience):
    lowest, bad, kept = float("inf"), 0, None
    while True:
        value, weights = yield kept
        if value < lowest:
            lowest = value
            kept = {k: v.clone() for k, v in weights.items()}
        else:
            bad += 1  # <- CKP010
            if bad >= patience:
                raise StopTraining
""",
    "a class with other names": """
class Watch:
    def __init__(self, patience):
        self.patience, self.stale, self.top = patience, 0, 0.0
    def should_stop(self, accuracy):
        if self.top > accuracy:
            self.stale += 1  # <- CKP010
        else:
            self.top = accuracy
        if self.stale >= self.patience:
            return True
        return False
""",
    "in a loop": """
best, bad, patience = float("inf"), 0, 5
for epoch in range(99):
    val_loss = evaluate(model)
    if val_loss < best:
        best = val_loss
        torch.save(model.state_dict(), "best.pt")
    else:
        bad += 1  # <- CKP010
        if bad >= patience:
            break
""",
    "the other arm first, the limit afterwards": """
def fit(model, patience):
    best_loss = 1e9
    count = 0
    for epoch in range(99):
        loss = evaluate(model)
        if loss >= best_loss:
            count = count + 1  # <- CKP010
        else:
            best_loss = loss
        if count > patience:
            return model
""",
    "a class": """
class EarlyStopping:
    def __init__(self, patience):
        self.patience = patience
        self.counter = 0
        self.best_loss = float("inf")
        self.early_stop = False
    def __call__(self, val_loss):
        if val_loss < self.best_loss:
            self.best_loss = val_loss
        else:
            self.counter += 1  # <- CKP010
            if self.counter >= self.patience:
                self.early_stop = True
""",
}

CORRECT = {
    "the comparison is returned, set back": """
class EarlyStopping:
    def __init__(self, patience):
        self.patience, self.best, self.counter = patience, float("inf"), 0
    def step(self, value):
        if value < self.best:
            self.best, self.counter = value, 0
        else:
            self.counter += 1
        return self.counter >= self.patience
""",
    "a budget of attempts": """
best, attempts = float("inf"), 0
while attempts < 100:
    value = evaluate(draw())
    if value < best:
        best = value
    else:
        attempts += 1
""",
    "a comparison with another meaning is returned": """
class Tracker:
    def __init__(self):
        self.best, self.worse = 0.0, 0
    def update(self, value):
        if value > self.best:
            self.best = value
        else:
            self.worse += 1
    def was_ever_worse(self):
        return self.worse == self.seen
""",
    "the condition of the loop, set back": """
best, waited, patience = float("inf"), 0, 5
while waited < patience:
    val_loss = evaluate(model)
    if val_loss < best:
        best, waited = val_loss, 0
    else:
        waited += 1
""",
    "a generator that sets it back": """
def watcher(patience):
    lowest, bad = float("inf"), 0
    while True:
        value = yield lowest
        if value < lowest:
            lowest, bad = value, 0
        else:
            bad += 1
            if bad >= patience:
                raise StopTraining
""",
    "other names, set back by a method": """
class Watch:
    def __init__(self, patience):
        self.patience, self.stale, self.top = patience, 0, 0.0
    def renew(self):
        self.stale = 0
    def should_stop(self, accuracy):
        if accuracy > self.top:
            self.top = accuracy
            self.renew()
        else:
            self.stale += 1
            if self.stale >= self.patience:
                return True
        return False
""",
    "set back": """
best, bad = float("inf"), 0
for epoch in range(99):
    val_loss = evaluate(model)
    if val_loss < best:
        best = val_loss
        bad = 0
    else:
        bad += 1
        if bad >= 5:
            break
""",
    "set back first, counted always": """
best, bad = float("inf"), 0
for epoch in range(99):
    bad += 1
    val_loss = evaluate(model)
    if val_loss < best:
        best, bad = val_loss, 0
    if bad >= 5:
        break
""",
    "a class with three arms": """
class EarlyStopping:
    def __init__(self, patience=7, delta=0):
        self.patience, self.delta = patience, delta
        self.counter = 0
        self.best_score = None
        self.early_stop = False
    def __call__(self, val_loss, model):
        score = -val_loss
        if self.best_score is None:
            self.best_score = score
        elif score < self.best_score + self.delta:
            self.counter += 1
            if self.counter >= self.patience:
                self.early_stop = True
        else:
            self.best_score = score
            self.counter = 0
""",
    "set back by another method": """
class Patience:
    def __init__(self):
        self.restart()
        self.best_loss = float("inf")
    def restart(self):
        self.waited = 0
    def update(self, loss):
        if loss < self.best_loss:
            self.best_loss = loss
            self.restart()
        else:
            self.waited += 1
            if self.waited >= 3:
                return True
""",
    "only counted and printed": """
best, worse = float("inf"), 0
for epoch in range(99):
    val_loss = evaluate(model)
    if val_loss < best:
        best = val_loss
    else:
        worse += 1
print(worse)
""",
    "the learning rate falls at the limit": """
best, waited = float("inf"), 0
for epoch in range(99):
    val_loss = evaluate(model)
    if val_loss < best:
        best = val_loss
    else:
        waited += 1
        if waited == 3:
            lr, waited = lr / 2, 0
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(script)
