"""OPT020: weights of several models that are added and never divided."""

import pytest

HEAD = """
import copy
from collections import OrderedDict
import torch
from torch import nn

model = nn.Linear(4, 2)
models = [nn.Linear(4, 2) for _ in range(3)]
states = [each.state_dict() for each in models]
paths = ["a.pt", "b.pt"]
"""
FAULTY = {
    "keys first": """
total = copy.deepcopy(states[0])
for key in total:
    for state in states[1:]:
        total[key] += state[key]  # <- OPT020
model.load_state_dict(total)
""",
    "models first": """
def aggregate(global_model, clients):
    result = {k: torch.zeros_like(v) for k, v in global_model.state_dict().items()}
    for client in clients:
        local = client.state_dict()
        for name in result:
            result[name] = result[name] + local[name]  # <- OPT020
    global_model.load_state_dict(result)


aggregate(model, models)
""",
    "a function returns it": """
def average_weights(w):
    w_avg = copy.deepcopy(w[0])
    for k in w_avg.keys():
        for i in range(1, len(w)):
            w_avg[k] += w[i][k]  # <- OPT020
    return w_avg


new = average_weights(states)
model.load_state_dict(new)
""",
    "checkpoints": """
soup = torch.load(paths[0], weights_only=True)
for path in paths[1:]:
    checkpoint = torch.load(path, weights_only=True)
    for k, v in soup.items():
        soup[k].add_(checkpoint[k])  # <- OPT020
model.load_state_dict(soup)
""",
    "a comprehension": """
merged = {k: sum(s[k] for s in states) for k in states[0]}  # <- OPT020
model.load_state_dict(merged)
""",
    "a stack": """
merged = OrderedDict()
for k in states[0]:
    merged[k] = torch.stack([s[k] for s in states]).sum(0)  # <- OPT020
model.load_state_dict(merged)
""",
    "begun with the first": """
merged = {}
for path in paths:
    loaded = torch.load(path, weights_only=True)
    for k, v in loaded.items():
        merged[k] = v if k not in merged else merged[k] + v  # <- OPT020
model.load_state_dict(merged)
""",
    "torch.add": """
summed = states[0]
for sd in states[1:]:
    for name in summed:
        summed[name] = torch.add(summed[name], sd[name])  # <- OPT020
model.load_state_dict(summed)
""",
    "begun with zero": """
merged = {}
for m in models:
    for k, v in m.state_dict().items():
        merged[k] = merged.get(k, 0) + v  # <- OPT020
model.load_state_dict(merged)
""",
    "a method": """
class Server:
    def aggregate(self):
        agg = None
        for client in self.clients:
            sd = client.model.state_dict()
            if agg is None:
                agg = copy.deepcopy(sd)
            else:
                for k in agg:
                    agg[k] = agg[k] + sd[k]  # <- OPT020
        self.model.load_state_dict(agg)
""",
    "parameters": """
ensemble = copy.deepcopy(models[0])
for other in models[1:]:
    for p, q in zip(ensemble.parameters(), other.parameters()):
        p.data += q.data  # <- OPT020
""",
}
CORRECT = {
    "divided in the loop": """
total = copy.deepcopy(states[0])
for key in total:
    for state in states[1:]:
        total[key] += state[key]
    total[key] = torch.div(total[key], len(states))
model.load_state_dict(total)
""",
    "divided by another function": """
def add(states):
    total = copy.deepcopy(states[0])
    for key in total:
        for state in states[1:]:
            total[key] += state[key]
    return total


def scale(state, n):
    return {k: v / n for k, v in state.items()}


summed = add(states)
model.load_state_dict(scale(summed, len(states)))
""",
    "divided later": """
total = copy.deepcopy(states[0])
for state in states[1:]:
    for key in total:
        total[key] += state[key]
for key in total:
    total[key] /= len(states)
model.load_state_dict(total)
""",
    "divided items": """
total = copy.deepcopy(states[0])
for state in states[1:]:
    for key in total:
        total[key] += state[key]
for value in total.values():
    value.div_(len(states))
model.load_state_dict(total)
""",
    "shares": """
shares = [0.5, 0.3, 0.2]
total = {k: torch.zeros_like(v) for k, v in states[0].items()}
for share, state in zip(shares, states):
    for key in total:
        total[key] += share * state[key]
model.load_state_dict(total)
merged = {k: sum(a * s[k] for a, s in zip(shares, states)) for k in states[0]}
model.load_state_dict(merged)
""",
    "divided before": """
total = {k: torch.zeros_like(v) for k, v in states[0].items()}
for state in states:
    for key in total:
        part = state[key] / len(states)
        total[key] += part
model.load_state_dict(total)
""",
    "a mean": """
merged = {k: torch.stack([s[k] for s in states]).mean(0) for k in states[0]}
model.load_state_dict(merged)
""",
    "a running mean": """
total = copy.deepcopy(states[0])
for n, state in enumerate(states[1:], 2):
    for key in total:
        total[key] += (state[key] - total[key]) / n
model.load_state_dict(total)
""",
    "task vectors": """
merged = copy.deepcopy(model.state_dict())
vectors = [{k: v - merged[k] for k, v in s.items()} for s in states]
for vector in vectors:
    for key in merged:
        merged[key] += vector[key]
model.load_state_dict(merged)
""",
    "parameters that are divided": """
ensemble = copy.deepcopy(models[0])
for other in models[1:]:
    for p, q in zip(ensemble.parameters(), other.parameters()):
        p.data += q.data
for p in ensemble.parameters():
    p.data /= len(models)
""",
    "divided in a comprehension": """
total = copy.deepcopy(states[0])
for state in states[1:]:
    for key in total:
        total[key] += state[key]
total = OrderedDict((k, v.div(len(states))) for k, v in total.items())
model.load_state_dict(total)
""",
    "states with factors": """
scaled = []
for n, state in zip((0.2, 0.3, 0.5), states):
    scaled.append({k: v * n for k, v in state.items()})
total = {k: torch.zeros_like(v) for k, v in states[0].items()}
for part in scaled:
    for key in total:
        total[key] += part[key]
model.load_state_dict(total)
""",
    "metrics": """
total = {"loss": 0.0}
for metrics in [{"loss": 1.0}]:
    for key in total:
        total[key] += metrics[key]
print(total)
model.load_state_dict(states[0])
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_summed_weights(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "OPT020")
