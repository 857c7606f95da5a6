"""The context creates copies, and leaves the user's objects unchanged."""

import functools
import random

import numpy as np
import pytest
import torch
from torch import nn

from trueloop.core.errors import InvalidConfig, InvalidData, InvalidModel
from trueloop.verification.discover import all_proofs
from trueloop.verification.evidence import NotApplicable
from trueloop.verification.proof import run_proof
from trueloop.verification.proof_context import ProofContext
from trueloop.verification.proof_target import ProofTarget


def step(model, optimizer, batches):
    optimizer.zero_grad()
    for x, y in batches:
        (nn.functional.cross_entropy(model(x), y) / len(batches)).backward()
    optimizer.step()


def test_everything_is_afterwards_as_it_was(classes, net):
    model = net(norm=nn.BatchNorm1d(16), dropout=0.3)
    nn.functional.cross_entropy(model(classes[0]), classes[1]).backward()
    model.eval()
    model[1].train()
    model[0].bias.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    inputs = [tensor.clone() for tensor in classes]
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    grads = [parameter.grad.clone() for parameter in model.parameters()]
    modes = [module.training for module in model.modules()]
    torch.manual_seed(7)
    np.random.seed(7)
    random.seed(7)
    expected = torch.rand(3), np.random.rand(3), random.random()
    torch.manual_seed(7)
    np.random.seed(7)
    random.seed(7)
    subject = ProofTarget(
        model=model,
        loss=nn.CrossEntropyLoss(),
        batch=classes,
        loader=torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*classes), 4, shuffle=True),
        optimizer=optimizer,
        step=step,
    )
    with torch.no_grad():
        for proof in all_proofs().values():
            assert run_proof(proof, ProofContext(subject)).verdict != "not judged"
        assert not torch.is_grad_enabled()
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    assert all(torch.equal(p.grad, grad) for p, grad in zip(model.parameters(), grads, strict=True))
    assert [module.training for module in model.modules()] == modes
    assert not optimizer.state
    assert all(torch.equal(a, b) for a, b in zip(classes, inputs, strict=True))
    assert torch.equal(torch.rand(3), expected[0])
    assert np.array_equal(np.random.rand(3), expected[1])
    assert random.random() == expected[2]


def test_an_optimizer_is_copied_with_the_model(net, classes):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    work = ProofContext(
        ProofTarget(model=model, loss=nn.CrossEntropyLoss(), batch=classes, optimizer=optimizer)
    ).training_copy()
    assert {id(p) for p in work.optimizer.param_groups[0]["params"]} == {id(p) for p in work.model.parameters()}
    assert work.optimizer.param_groups[0]["momentum"] == 0.9


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (None, torch.optim.Adam),
        (torch.optim.SGD, torch.optim.SGD),
        (functools.partial(torch.optim.AdamW, lr=0.5), torch.optim.AdamW),
        (lambda model: torch.optim.RMSprop(model[0].parameters()), torch.optim.RMSprop),
    ],
)
def test_optimizers_are_made_for_the_copy(net, given, kind):
    work = ProofContext(ProofTarget(model=net, optimizer=given)).training_copy()
    assert type(work.optimizer) is kind
    own = {id(parameter) for parameter in work.model.parameters()}
    assert all(id(p) in own for group in work.optimizer.param_groups for p in group["params"])


def test_an_optimizer_of_another_model_is_refused(net):
    bench = ProofContext(ProofTarget(model=net(), optimizer=torch.optim.SGD(net().parameters(), lr=0.1)))
    with pytest.raises(InvalidConfig, match="holds no parameter of the model"):
        bench.training_copy()
    with pytest.raises(InvalidConfig, match="returned int"):
        ProofContext(ProofTarget(model=net(), optimizer=lambda _: 3)).training_copy()


def test_a_model_that_cannot_be_copied_is_told(classes):
    class Holding(nn.Linear):
        def __deepcopy__(self, memo):
            raise TypeError("cannot pickle '_thread.lock' object")

    bench = ProofContext(ProofTarget(model=Holding(8, 3), loss=nn.CrossEntropyLoss(), batch=classes))
    with pytest.raises(InvalidModel, match="Pass a function that creates the model"):
        bench.training_copy()
    made = ProofContext(
        ProofTarget(model=lambda: Holding(8, 3), loss=nn.CrossEntropyLoss(), batch=classes)
    ).training_copy()
    assert isinstance(made.model, Holding)


def test_a_function_that_makes_no_model():
    with pytest.raises(InvalidModel, match="returned dict"):
        ProofContext(ProofTarget(model=dict))


def test_a_loader_that_is_empty_is_told(net):
    with pytest.raises(InvalidData, match="no batch"):
        _ = ProofContext(ProofTarget(model=net(), loader=[])).batch


def test_without_data_nothing_applies(net):
    with pytest.raises(NotApplicable):
        _ = ProofContext(ProofTarget(model=net())).batch


def test_a_loader_is_read_once_for_all_and_its_batches_are_copies(net, classes):
    class Counted(list):
        reads = 0

        def __iter__(self):
            self.reads += 1
            return super().__iter__()

    loader = Counted([classes, classes])
    bench = ProofContext(ProofTarget(model=net(), loader=loader))
    bench.batches(1)[0][0].zero_()
    assert torch.equal(bench.batches(1)[0][0], classes[0])
    assert len(bench.batches(5)) == len(bench.batches(9)) == 2
    assert loader.reads == 2  # one iteration for one batch, and one for five batches


def test_a_lazy_model_is_told():
    with pytest.raises(InvalidModel, match="weight is uninitialized"):
        ProofContext(ProofTarget(model=nn.LazyLinear(3)))
