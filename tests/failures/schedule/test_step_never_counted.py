"""SCH018: a counter of steps is never advanced."""

import pytest

HEAD = """
import math
import random
import torch
from torch import nn
model, target = nn.Linear(8, 2), nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def batches():
    for _ in range(10):
        yield torch.randn(4, 8), torch.randn(4, 2)
def learn(weight=1.0):
    x, y = torch.randn(4, 8), torch.randn(4, 2)
    optimizer.zero_grad()
    (weight * nn.functional.mse_loss(model(x), y)).backward()
    optimizer.step()
"""
FAULTY = {
    "a rate of exploration": """
steps_done = 0
for episode in range(10):
    for _ in range(5):
        epsilon = 0.05 + 0.85 * math.exp(-steps_done / 200)  # <- SCH018
        action = 0 if random.random() < epsilon else 1
        learn()
""",
    "a global variable that a function reads": """
steps_done = 0
def select_action(state):
    epsilon = 0.05 + 0.85 * math.exp(-1.0 * steps_done / 200)  # <- SCH018
    return random.randrange(2) if random.random() < epsilon else model(state).argmax().item()
for episode in range(10):
    select_action(torch.randn(8))
    learn()
""",
    "an attribute": """
class Agent:
    def __init__(self):
        self.global_step = 0
    def beta(self):
        return min(1.0, self.global_step / 1000)  # <- SCH018
    def train(self):
        for x, y in batches():
            learn(self.beta())
Agent().train()
""",
    "a target network": """
num_updates = 0
for x, y in batches():
    learn()
    if num_updates % 100 == 0:  # <- SCH018
        target.load_state_dict(model.state_dict())
""",
    "a function that counts its own copy": """
def train_epoch(global_step):
    for x, y in batches():
        weight = min(1.0, global_step / 50)
        learn(weight)
        global_step += 1
def main():
    global_step = 0
    for epoch in range(5):
        train_epoch(global_step)  # <- SCH018
main()
""",
    "a function that gets the counter": """
def kl_weight(it, total=100):
    return min(1.0, it / total)
iteration = 0
for epoch in range(5):
    for x, y in batches():
        learn(kl_weight(iteration))  # <- SCH018
""",
    "an item of a dictionary": """
state = {"step": 0, "best": 1.0}
for epoch in range(5):
    for x, y in batches():
        learn(min(1.0, state["step"] / 20))  # <- SCH018
""",
    "in a function, with the counter set to 0 twice": """
def fit():
    step = 0
    for epoch in range(5):
        step = 0
        for x, y in batches():
            for group in optimizer.param_groups:
                group["lr"] = 0.1 * min(1.0, (step + 1) / 10)  # <- SCH018
            learn()
fit()
""",
}
CORRECT = {
    "advanced": """
step = 0
for x, y in batches():
    learn(min(1.0, step / 20))
    step += 1
""",
    "advanced by assignment": """
step = 0
for x, y in batches():
    learn(min(1.0, step / 20))
    step = step + 1
""",
    "the variable of a loop": """
step = 0
for step in range(10):
    learn(min(1.0, step / 20))
""",
    "only printed": """
step = 0
for x, y in batches():
    learn()
    if step % 100 == 0:
        print(step / 10)
    print(f"{step / 3}")
""",
    "a setting": """
warmup_steps = 0
start_step = 0
for step, (x, y) in enumerate(batches()):
    learn(min(1.0, (start_step + step + 1) / max(1, warmup_steps)))
""",
    "a global variable that a function advances": """
steps_done = 0
def select_action(state):
    global steps_done
    epsilon = 0.05 + 0.85 * math.exp(-1.0 * steps_done / 200)
    steps_done += 1
    return random.randrange(2) if random.random() < epsilon else model(state).argmax().item()
for episode in range(10):
    select_action(torch.randn(8))
    learn()
""",
    "a function that returns the count": """
def train_epoch(global_step):
    for x, y in batches():
        learn(min(1.0, global_step / 50))
        global_step += 1
    return global_step
def main():
    global_step = 0
    for epoch in range(5):
        global_step = train_epoch(global_step)
main()
""",
    "an attribute that another object advances": """
class Schedule:
    def __init__(self):
        self.step_count = 0
    def value(self):
        return min(1.0, self.step_count / 10)
schedule = Schedule()
for x, y in batches():
    learn(schedule.value())
    schedule.step_count += 1
""",
    "an attribute that a base class may advance": """
class Warmup(torch.optim.lr_scheduler.LRScheduler):
    def __init__(self, optimizer):
        self.step_count = 0
        super().__init__(optimizer)
    def get_lr(self):
        return [0.1 * min(1.0, self.step_count / 10) for _ in self.optimizer.param_groups]
""",
    "an item that is advanced": """
state = {"step": 0}
for x, y in batches():
    learn(min(1.0, state["step"] / 20))
    state["step"] += 1
""",
    "a closure that advances": """
def run():
    step = 0
    def weight():
        nonlocal step
        step += 1
        return step / 10
    for x, y in batches():
        learn(weight() * min(1.0, step / 5))
run()
""",
    "a walrus": """
step = 0
while (step := step + 1) < 10:
    learn(min(1.0, step / 5))
""",
    "a parameter of the same name elsewhere": """
def weight(step):
    return min(1.0, step / 20)
step = 0
print(step)
for i, (x, y) in enumerate(batches()):
    learn(weight(i))
""",
    "set from a checkpoint": """
step = 0
checkpoint = {"step": 4}
step = checkpoint["step"]
for x, y in batches():
    learn(min(1.0, step / 20))
    step += 1
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_a_counter_that_stays_zero(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_counters(lint_is_clean, script):
    lint_is_clean(HEAD + script, "SCH018")
