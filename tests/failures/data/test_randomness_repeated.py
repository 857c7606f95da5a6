"""DAT005: augmentation that repeats the same random numbers."""

import pytest

from trueloop.core.findings import Severity

HEAD = """
import random
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

table = torch.randn(160, 6)
model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.1), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def fit(loader, epochs=2):
    for epoch in range(epochs):
        for x in loader:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

class Rows(Dataset):
    def __len__(self):
        return 160
    def __getitem__(self, i):
        return table[i] + self.noise(i)
"""

FAULTY = {
    "seeded for every sample": """
class Noisy(Rows):
    def noise(self, i):
        torch.manual_seed(0)  # <- DAT005
        return torch.randn(6)
fit(DataLoader(Noisy(), 8, shuffle=True))
""",
    "python's generator, in a transform": """
def jitter(x):
    random.seed(1234)  # <- DAT005
    return x * random.uniform(0.9, 1.1)

class Noisy(Dataset):
    def __init__(self, transform):
        self.transform = transform
    def __len__(self):
        return 160
    def __getitem__(self, i):
        return self.transform(table[i])
fit(DataLoader(Noisy(jitter), 8))
""",
    "numpy's, in the collate function": """
def collate(rows):
    np.random.seed(7)  # <- DAT005
    return torch.stack(rows) + torch.from_numpy(np.random.randn(len(rows), 6)).float()
fit(DataLoader(table, 4, shuffle=True, collate_fn=collate))
""",
    "a generator copied into workers": """
class Noisy(Rows):
    def __init__(self):
        self.rng = np.random.default_rng(0)
    def noise(self, i):
        return torch.from_numpy(self.rng.normal(size=6)).float()
loader = DataLoader(Noisy(), 20, shuffle=True, num_workers=2)  # <- DAT005
fit(loader, epochs=1)
""",
    "a transform with a generator, one worker, two epochs": """
class Jitter:
    def __init__(self):
        self.random = random.Random(0)
    def __call__(self, x):
        return x * self.random.uniform(0.9, 1.1)
class Noisy(Dataset):
    def __init__(self):
        self.transform = Jitter()
    def __len__(self):
        return 80
    def __getitem__(self, i):
        return self.transform(table[i])
def main():
    fit(DataLoader(Noisy(), 20, shuffle=True, num_workers=1))  # <- DAT005
main()
""",
}

CORRECT = {
    "global generators": """
class Noisy(Rows):
    def noise(self, i):
        return torch.randn(6) * random.random() * np.random.rand()
fit(DataLoader(Noisy(), 8, shuffle=True))
fit(DataLoader(Noisy(), 20, shuffle=True, num_workers=2))
""",
    "a seed for each sample": """
class Synthetic(Rows):
    def noise(self, i):
        torch.manual_seed(i)
        return torch.randn(6)
fit(DataLoader(Synthetic(), 8))
""",
    "a generator of the dataset, in this process": """
class Noisy(Rows):
    def __init__(self):
        self.rng = np.random.default_rng(0)
    def noise(self, i):
        return torch.from_numpy(self.rng.normal(size=6)).float()
fit(DataLoader(Noisy(), 8, shuffle=True))
""",
    "seeded in worker_init_fn": """
class Noisy(Rows):
    def __init__(self):
        self.rng = np.random.default_rng(0)
    def noise(self, i):
        return torch.from_numpy(self.rng.normal(size=6)).float()
def seed(worker):
    get_worker_info().dataset.rng = np.random.default_rng(torch.initial_seed())
fit(DataLoader(Noisy(), 20, shuffle=True, num_workers=2, worker_init_fn=seed))
""",
    "used once, to split": """
class Part(Rows):
    def __init__(self):
        self.rng = np.random.default_rng(0)
        self.order = self.rng.permutation(160)
    def noise(self, i):
        return torch.randn(6) * self.order[i] / 1000
fit(DataLoader(Part(), 20, shuffle=True, num_workers=2))
""",
    "a new generator for each sample": """
class Noisy(Rows):
    def __init__(self):
        self.rng = np.random.default_rng(0)
    def noise(self, i):
        self.rng = np.random.default_rng((0, int(i)))
        return torch.from_numpy(self.rng.normal(size=6)).float()
fit(DataLoader(Noisy(), 20, shuffle=True, num_workers=2))
""",
    "workers with different seeds": """
class Stream(IterableDataset):
    def __init__(self):
        self.rng = np.random.default_rng(0)
    def __iter__(self):
        rng = self.rng.spawn(4)[get_worker_info().id]
        for _ in range(40):
            yield torch.from_numpy(rng.normal(size=6)).float()
fit(DataLoader(Stream(), 20, num_workers=2))
""",
    "held-out noise that is fixed": """
class Noisy(Rows):
    def __init__(self):
        self.rng = np.random.default_rng(0)
    def noise(self, i):
        return torch.from_numpy(self.rng.normal(size=6)).float()
fit(DataLoader(table, 20, shuffle=True), epochs=1)
model.eval()
with torch.no_grad():
    for x in DataLoader(Noisy(), 20, num_workers=2):
        model(x)
""",
    "a sampler seeded once an epoch": """
class Fixed(torch.utils.data.Sampler):
    def __len__(self):
        return 160
    def __iter__(self):
        torch.manual_seed(3)
        return iter(torch.randperm(160).tolist())
fit(DataLoader(table, 40, sampler=Fixed()), epochs=20)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_faulty_scripts(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script)


LINT_SCRIPT = """
import random
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Simulated(Dataset):
    def __init__(self, count, seed):
        self.count = count
        self.rng = {generator}{mark}
        {built}

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        {body}
        return torch.tensor(x, dtype=torch.float32), torch.tensor([x[0]], dtype=torch.float32)

def prepare(worker):
    torch.utils.data.get_worker_info().dataset.rng = np.random.default_rng(worker)

loader = DataLoader(Simulated(64, 0), batch_size=8, {options})
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
"""
LINT_DEFAULT = {
    "generator": "np.random.default_rng(seed)",
    "built": "pass",
    "body": "x = self.rng.normal(size=4)",
    "options": "num_workers=2",
}
LINT_FAULTY = {
    "a NumPy generator": {},
    "under another name": {"body": "r = self.rng\n        x = r.normal(size=4)"},
    "an old one": {"generator": "np.random.RandomState(seed)", "options": "shuffle=True, num_workers=4"},
    "Python's": {"generator": "random.Random(seed)", "body": "x = [self.rng.gauss(0, 1) for _ in range(4)]"},
}
LINT_FAULTY["enumerate"] = {"for x, y in loader": "for i, (x, y) in enumerate(loader)"}
LINT_CORRECT = {
    "no workers": {"options": "num_workers=0"},
    "seeded in each worker": {"options": "num_workers=2, worker_init_fn=prepare"},
    "used only to build the data": {
        "built": "self.x = self.rng.normal(size=(count, 4))",
        "body": "x = self.x[index]",
    },
    "made for each sample": {"body": "x = np.random.default_rng(index).normal(size=4)"},
    "made in each worker": {
        "body": "if index == 0:\n            self.rng = np.random.default_rng(torch.initial_seed())\n"
        "        x = self.rng.normal(size=4)"
    },
}


def lint_script(changes, mark=""):
    script = LINT_SCRIPT
    for name, value in {**LINT_DEFAULT, "mark": mark, **changes}.items():
        script = script.replace(name if " " in name else f"{{{name}}}", value)
    return script


@pytest.mark.parametrize("changes", LINT_FAULTY.values(), ids=LINT_FAULTY)
def test_lint_reports_a_generator_that_workers_copy(lint_reports, changes):
    lint_reports(lint_script(changes, "  # <- DAT005"))


@pytest.mark.parametrize("changes", LINT_CORRECT.values(), ids=LINT_CORRECT)
def test_lint_accepts_other_generators(lint_is_clean, changes):
    lint_is_clean(lint_script(changes))


WORKER_SEEDS = """
import random
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

class Noisy(Dataset):
    def __init__(self, x):
        self.x = x
    def __len__(self):
        return len(self.x)
    def __getitem__(self, i):
        return self.augment(self.x[i])
    def augment(self, x):
        return x + np.random.normal(size=6)

{seeding}
train_loader = DataLoader(Noisy(torch.zeros(64, 6)), 8, num_workers=2, {options})
"""
CONSTANT_SEEDS = {
    "a function": """
def init(worker_id):
    np.random.seed(42 + worker_id)  # <- DAT005
""",
    "a lambda": """
init = lambda worker_id: np.random.seed(worker_id)  # <- DAT005
""",
    "several generators, a variable": """
SEED = 7
def init(worker_id):
    seed = SEED + worker_id
    random.seed(seed)
    np.random.seed(seed)  # <- DAT005
""",
    "a class": """
class Init:
    def __init__(self, seed):
        self.seed = seed
    def __call__(self, worker_id):
        np.random.seed(self.seed * 100 + worker_id)  # <- DAT005
init = Init(3)
""",
}
CONSTANT_SEEDS |= {
    "the first word of the state": """
def init(worker_id):
    np.random.seed(np.random.get_state()[1][0] + worker_id)  # <- DAT005
""",
    "the first word in a variable": """
def init(worker_id):
    base = np.random.get_state()[1][0]
    np.random.seed(base + worker_id)  # <- DAT005
""",
    "the first word in a lambda": """
init = lambda number: np.random.seed(int(np.random.get_state()[1][0]) + number)  # <- DAT005
""",
}
CHANGING_SEEDS = {
    "PyTorch's seed": """
def init(worker_id):
    np.random.seed(torch.initial_seed() % 2**32)
""",
    "PyTorch's seed in a variable": """
def init(worker_id):
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed + worker_id)
""",
    "the seed of the worker": """
def init(worker_id):
    info = torch.utils.data.get_worker_info()
    np.random.seed(info.seed % 2**32)
""",
    "the epoch": """
epoch = 0
def init(worker_id):
    np.random.seed(100 * epoch + worker_id)
""",
    "the first word and the epoch": """
epoch = 0
def init(worker_id):
    np.random.seed(np.random.get_state()[1][0] + epoch + worker_id)
""",
    "the first word, printed": """
def init(worker_id):
    np.random.seed(torch.initial_seed() % 2**32)
    print(np.random.get_state()[1][0])
""",
    "another generator": """
def init(worker_id):
    random.seed(worker_id)
""",
}


@pytest.mark.parametrize("seeding", CONSTANT_SEEDS.values(), ids=CONSTANT_SEEDS)
def test_lint_reports_a_constant_seed_of_workers(lint_reports, seeding):
    lint_reports(WORKER_SEEDS.format(seeding=seeding, options="worker_init_fn=init"))


@pytest.mark.parametrize("seeding", CHANGING_SEEDS.values(), ids=CHANGING_SEEDS)
def test_lint_accepts_seeds_of_workers_that_change(lint_is_clean, seeding):
    lint_is_clean(WORKER_SEEDS.format(seeding=seeding, options="worker_init_fn=init"))


@pytest.mark.parametrize(
    "options", ["shuffle=True, worker_init_fn=init", "persistent_workers=True, worker_init_fn=init"]
)
def test_lint_accepts_constant_seeds_of_workers_where_other_samples_get_the_numbers(lint_is_clean, options):
    lint_is_clean(WORKER_SEEDS.format(seeding=CONSTANT_SEEDS["a function"], options=options))


def test_lint_accepts_the_first_word_in_workers_that_are_started_once(lint_is_clean):
    seeding = CONSTANT_SEEDS["the first word of the state"].replace("  # <- DAT005", "")
    lint_is_clean(WORKER_SEEDS.format(seeding=seeding, options="persistent_workers=True, worker_init_fn=init"))


ALL_WORKERS = {
    "a constant": """
def init(worker_id):
    np.random.seed(42)  # <- DAT005
""",
    "the rank and a seed": """
from functools import partial
def prepare(worker_id, rank, seed):
    worker_seed = rank + seed
    random.seed(worker_seed)
    np.random.seed(worker_seed)  # <- DAT005
init = partial(prepare, rank=0, seed=SEED)
""",
    "a lambda": """
init = lambda _: np.random.seed(SEED)  # <- DAT005
""",
    "bound by position": """
from functools import partial
def prepare(seed, worker_id):
    np.random.seed(seed)  # <- DAT005
init = partial(prepare, SEED)
""",
}

OWN_SEEDS = {
    "the number of the worker": """
def init(worker_id):
    seed = SEED + worker_id
    np.random.seed(seed)
""",
    "bound, with the number": """
from functools import partial
def prepare(worker_id, rank, seed):
    np.random.seed(1000 * rank + seed + worker_id)
init = partial(prepare, rank=0, seed=SEED)
""",
    "by position, with the number": """
from functools import partial
def prepare(seed, worker_id):
    np.random.seed(seed + worker_id)
init = partial(prepare, SEED)
""",
    "the seed of PyTorch": """
def init(worker_id):
    np.random.seed(torch.initial_seed() % 2**32)
""",
}


@pytest.mark.parametrize("seeding", ALL_WORKERS.values(), ids=ALL_WORKERS)
def test_lint_reports_one_seed_for_all_workers_also_if_samples_are_shuffled(lint_reports, seeding):
    found = lint_reports(WORKER_SEEDS.format(seeding=seeding, options="shuffle=True, worker_init_fn=init"))
    assert {each.severity for each in found} == {Severity.WARNING}


@pytest.mark.parametrize("seeding", OWN_SEEDS.values(), ids=OWN_SEEDS)
def test_lint_accepts_own_seeds_of_workers(lint_is_clean, seeding):
    lint_is_clean(WORKER_SEEDS.format(seeding=seeding, options="shuffle=True, worker_init_fn=init"))
    one_worker = WORKER_SEEDS.replace("num_workers=2", "num_workers=1")
    lint_is_clean(
        one_worker.format(seeding="init = lambda _: np.random.seed(SEED)", options="shuffle=True, worker_init_fn=init")
    )


OF_SAMPLES = """
import random
import torch
from torch.utils.data import DataLoader, Dataset

AUG_SEED = 42


class Pictures(Dataset):
    def __init__(self, images, masks):
        self.images, self.masks = images, masks

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image, mask = self.images[index], self.masks[index]
        random.seed(AUG_SEED)  # <- DAT005
        if random.random() < 0.5:
            image, mask = image.flip(-1), mask.flip(-1)
        return image, mask


loader = DataLoader(Pictures(torch.rand(8, 4, 4), torch.rand(8, 4, 4)), shuffle=True)
"""


def test_lint_reports_a_constant_of_the_module_as_the_seed_of_each_sample(lint_reports):
    lint_reports(OF_SAMPLES)


@pytest.mark.parametrize("seed", ["AUG_SEED + index", "index", "AUG_SEED if index else None"])
def test_lint_accepts_seeds_that_differ_between_samples(lint_is_clean, seed):
    script = OF_SAMPLES.replace("  # <- DAT005", "")
    lint_is_clean(script.replace("random.seed(AUG_SEED)", f"random.seed({seed})"))
    lint_is_clean(script.replace("random.seed(AUG_SEED)", f"AUG_SEED = {seed}; random.seed(AUG_SEED)"))
    lint_is_clean(
        script.replace("AUG_SEED = 42", "AUG_SEED = random.randrange(2**32)").replace("(AUG_SEED)", f"({seed})")
    )
