"""The average follows its recurrence bitwise, skips skipped updates, and leaves the model unchanged."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from trueloop.core.errors import CheckpointError, InvalidModel
from trueloop.training.optimizers.weight_average import WeightAverage


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def change_weights(model, seed):
    """Change the weights and the BatchNorm statistics, as an update would."""
    generator = torch.Generator().manual_seed(seed)
    model.train()(torch.randn(5, 3, generator=generator))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def cloned(state):
    return {name: tensor.clone() for name, tensor in state.items()}


@given(decay=st.floats(0.01, 0.9999), updates=st.integers(0, 6))
def test_it_equals_torchs_average_updated_once_before_training(decay, updates):
    model = network()
    average = WeightAverage(model, decay)
    reference = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True)
    reference.update_parameters(
        model
    )  # torch copies at its first call; trueloop starts from the weights at construction
    for update in range(updates):
        change_weights(model, update)
        average.update()
        reference.update_parameters(model)
    expected_state = reference.module.state_dict()
    actual = average.state_dict()
    assert torch.equal(actual.pop("1.num_batches_tracked"), model[1].num_batches_tracked)
    expected_state.pop("1.num_batches_tracked")  # torch averages the count, in integers
    assert same(actual, expected_state)


def test_it_follows_the_documented_recurrence_in_float64():
    model = nn.Linear(3, 2).double()
    average, expected = WeightAverage(model, 0.9), model.weight.detach().clone()
    for update in range(10):
        move_by = torch.full((2, 3), float(update), dtype=torch.float64)
        model.weight.data += move_by
        average.update()
        expected = 0.9 * expected + 0.1 * model.weight.detach()
    torch.testing.assert_close(average.state_dict()["weight"], expected, rtol=1e-14, atol=0)


@given(skips=st.lists(st.booleans(), max_size=6), dtype=st.sampled_from([torch.float32, torch.bool]))
def test_a_skipped_update_changes_nothing_and_others_are_equal(skips, dtype):
    model = network()
    results, quiet = WeightAverage(model, 0.9), WeightAverage(model, 0.9)
    for update, skipped in enumerate(skips):
        change_weights(model, update)
        results.update(torch.tensor(skipped, dtype=dtype))
        if not skipped:
            quiet.update()
    assert same(results.state_dict(), quiet.state_dict())


@pytest.mark.parametrize(("skipped", "moved"), [(1.0, False), (0.0, True)])
def test_skipped_may_be_a_number(skipped, moved):
    model = network()
    average = WeightAverage(model, 0.9)
    before = cloned(average.state_dict())
    change_weights(model, 1)
    average.update(skipped)
    assert same(average.state_dict(), before) != moved


def test_nan_in_the_buffers_of_a_skipped_update_is_ignored():
    model = network()
    average = WeightAverage(model, 0.9)
    before = cloned(average.state_dict())
    model.train()(torch.full((5, 3), torch.nan))
    assert model[1].running_mean.isnan().all()
    average.update(torch.tensor(1.0))
    assert same(average.state_dict(), before)


def test_applied_swaps_without_copying_and_swaps_back():
    model = network()
    average = WeightAverage(model, 0.5)
    change_weights(model, 1)
    average.update()
    trained, averaged = cloned(model.state_dict()), cloned(average.state_dict())
    parameters, storages = list(model.parameters()), {tensor.data_ptr() for tensor in model.state_dict().values()}
    with average.swapped_in():
        assert same(dict(model.state_dict()), averaged)
        assert all(now is then for now, then in zip(model.parameters(), parameters, strict=True))
    assert same(dict(model.state_dict()), trained)
    assert same(average.state_dict(), averaged)
    assert {tensor.data_ptr() for tensor in model.state_dict().values()} == storages


def test_applied_swaps_back_after_an_exception():
    model = network()
    average = WeightAverage(model, 0.5)
    change_weights(model, 1)
    trained = cloned(model.state_dict())

    def evaluate():
        with average.swapped_in():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate()
    assert same(dict(model.state_dict()), trained)
    average.update()


def test_the_optimizer_continues_with_the_trained_weights():
    model, twin = network(), network()
    average = WeightAverage(model, 0.5)
    for trained_model in (model, twin):
        optimizer = torch.optim.AdamW(trained_model.parameters(), fused=True)
        for update in range(3):
            if trained_model is model:
                with average.swapped_in(), torch.no_grad():
                    trained_model.eval()(torch.ones(2, 3))
            trained_model.train()(torch.full((4, 3), float(update))).sum().backward()
            optimizer.step()
            if trained_model is model:
                average.update()
    assert same(dict(model.state_dict()), dict(twin.state_dict()))


def test_it_can_neither_be_updated_nor_applied_while_applied():
    average = WeightAverage(network(), 0.5)
    with average.swapped_in():
        with pytest.raises(InvalidModel, match="in the model now"):
            average.update()
        with pytest.raises(InvalidModel, match="in the model now"), average.swapped_in():
            pass
    average.update()


def test_tied_weights_are_averaged_once():
    model = nn.ModuleDict({"embedding": nn.Embedding(7, 4), "head": nn.Linear(4, 7, bias=False)})
    model["head"].weight = model["embedding"].weight
    average = WeightAverage(model, 0.9)
    start = model["head"].weight.detach().clone()
    model["head"].weight.data += 1
    average.update()
    assert list(average.state_dict()) == ["embedding.weight"]
    torch.testing.assert_close(average.state_dict()["embedding.weight"], start + 0.1)
    with average.swapped_in():
        assert model["head"].weight is model["embedding"].weight


def test_non_persistent_buffers_are_not_averaged():
    model = nn.Linear(2, 2)
    model.register_buffer("mask", torch.ones(2, 2), persistent=False)
    assert "mask" not in WeightAverage(model, 0.9).state_dict()


def test_complex_weights_are_averaged():
    model = nn.Module()
    model.phase = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    average = WeightAverage(model, 0.5)
    model.phase.data += 2j
    average.update(torch.tensor(0.0))
    assert average.state_dict()["phase"].tolist() == [1 + 1j, 1 + 1j]


@given(resume_at=st.integers(0, 5))
def test_resuming_anywhere_is_bitwise_the_same(resume_at):
    model = network()
    uninterrupted = WeightAverage(model, 0.9)
    part = WeightAverage(model, 0.9)
    for update in range(5):
        if update == resume_at:
            saved = cloned(part.state_dict())
            part = WeightAverage(model, 0.9)
            part.load_state_dict(saved)
        change_weights(model, update)
        uninterrupted.update()
        part.update()
    assert same(uninterrupted.state_dict(), part.state_dict())


def test_a_state_that_does_not_fit_changes_nothing():
    average = WeightAverage(network(), 0.9)
    before = cloned(average.state_dict())
    state = cloned(before)
    state["extra"] = state.pop("0.bias") + 1
    state["3.weight"] = torch.zeros(5, 5)
    with pytest.raises(CheckpointError) as refused:
        average.load_state_dict(state)
    for message in ("0.bias is missing", "extra is not in the model", "3.weight has shape (5, 5), not (2, 4)"):
        assert message in refused.value.what
    assert same(average.state_dict(), before)


def test_low_precision_weights_are_refused():
    with pytest.raises(InvalidModel, match=r"0\.weight has the dtype torch\.bfloat16"):
        WeightAverage(network().bfloat16(), 0.999)


def test_a_copy_of_the_model_does_not_change_the_average():
    model = network()
    average = WeightAverage(model, 0.9)
    twin = copy.deepcopy(model)
    change_weights(model, 1)
    average.update()
    assert not same(dict(twin.state_dict()), average.state_dict())
