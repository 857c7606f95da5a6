"""The average follows its recurrence bitwise, skips skipped updates, and leaves the model unchanged."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from trueloop.core.errors import CheckpointError, InvalidConfig, InvalidModel
from trueloop.training.optimizers.weight_average import WeightAverage


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def move(model, seed):
    """One update's worth of change, in weights and BatchNorm statistics."""
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
def test_equals_torchs_average_called_once_before_training(decay, updates):
    model = network()
    average = WeightAverage(model, decay)
    reference = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True)
    reference.update_parameters(model)  # torch copies at its first call; ours starts from the weights at construction
    for update in range(updates):
        move(model, update)
        average.update()
        reference.update_parameters(model)
    theirs = reference.module.state_dict()
    mine = average.state_dict()
    assert torch.equal(mine.pop("1.num_batches_tracked"), model[1].num_batches_tracked)
    theirs.pop("1.num_batches_tracked")  # torch averages the count, in integers
    assert same(mine, theirs)


def test_follows_the_written_recurrence_in_float64():
    model = nn.Linear(3, 2).double()
    average, expected = WeightAverage(model, 0.9), model.weight.detach().clone()
    for update in range(10):
        move_by = torch.full((2, 3), float(update), dtype=torch.float64)
        model.weight.data += move_by
        average.update()
        expected = 0.9 * expected + 0.1 * model.weight.detach()
    torch.testing.assert_close(average.state_dict()["weight"], expected, rtol=1e-14, atol=0)


@given(skips=st.lists(st.booleans(), max_size=6), dtype=st.sampled_from([torch.float32, torch.bool]))
def test_a_skipped_update_moves_nothing_and_the_others_move_alike(skips, dtype):
    model = network()
    results, quiet = WeightAverage(model, 0.9), WeightAverage(model, 0.9)
    for update, skipped in enumerate(skips):
        move(model, update)
        results.update(torch.tensor(skipped, dtype=dtype))
        if not skipped:
            quiet.update()
    assert same(results.state_dict(), quiet.state_dict())


@pytest.mark.parametrize(("skipped", "moved"), [(1.0, False), (0.0, True)])
def test_a_skip_known_on_the_host_is_a_number(skipped, moved):
    model = network()
    average = WeightAverage(model, 0.9)
    before = cloned(average.state_dict())
    move(model, 1)
    average.update(skipped)
    assert same(average.state_dict(), before) != moved


def test_nan_in_the_buffers_of_a_skipped_update_stays_out():
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
    move(model, 1)
    average.update()
    trained, averaged = cloned(model.state_dict()), cloned(average.state_dict())
    parameters, storages = list(model.parameters()), {tensor.data_ptr() for tensor in model.state_dict().values()}
    with average.applied():
        assert same(dict(model.state_dict()), averaged)
        assert all(now is then for now, then in zip(model.parameters(), parameters, strict=True))
    assert same(dict(model.state_dict()), trained)
    assert same(average.state_dict(), averaged)
    assert {tensor.data_ptr() for tensor in model.state_dict().values()} == storages


def test_applied_swaps_back_after_an_exception():
    model = network()
    average = WeightAverage(model, 0.5)
    move(model, 1)
    trained = cloned(model.state_dict())

    def evaluate():
        with average.applied():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate()
    assert same(dict(model.state_dict()), trained)
    average.update()


def test_the_optimizer_goes_on_with_the_trained_weights_afterwards():
    model, twin = network(), network()
    average = WeightAverage(model, 0.5)
    for one in (model, twin):
        optimizer = torch.optim.AdamW(one.parameters(), fused=True)
        for update in range(3):
            if one is model:
                with average.applied(), torch.no_grad():
                    one.eval()(torch.ones(2, 3))
            one.train()(torch.full((4, 3), float(update))).sum().backward()
            optimizer.step()
            if one is model:
                average.update()
    assert same(dict(model.state_dict()), dict(twin.state_dict()))


def test_it_neither_updates_nor_nests_while_applied():
    average = WeightAverage(network(), 0.5)
    with average.applied():
        with pytest.raises(InvalidModel, match="in the model now"):
            average.update()
        with pytest.raises(InvalidModel, match="in the model now"), average.applied():
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
    with average.applied():
        assert model["head"].weight is model["embedding"].weight


def test_buffers_that_are_not_saved_are_left_alone():
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


@given(cut=st.integers(0, 5))
def test_resuming_anywhere_ends_at_the_same_bits(cut):
    model = network()
    whole = WeightAverage(model, 0.9)
    part = WeightAverage(model, 0.9)
    for update in range(5):
        if update == cut:
            saved = cloned(part.state_dict())
            part = WeightAverage(model, 0.9)
            part.load_state_dict(saved)
        move(model, update)
        whole.update()
        part.update()
    assert same(whole.state_dict(), part.state_dict())


def test_a_state_that_does_not_fit_is_refused_whole():
    average = WeightAverage(network(), 0.9)
    before = cloned(average.state_dict())
    state = cloned(before)
    state["extra"] = state.pop("0.bias") + 1
    state["3.weight"] = torch.zeros(5, 5)
    with pytest.raises(CheckpointError) as refused:
        average.load_state_dict(state)
    for said in ("0.bias is missing", "extra is not in the model", "3.weight has shape (5, 5), not (2, 4)"):
        assert said in refused.value.what
    assert same(average.state_dict(), before)


@pytest.mark.parametrize("decay", [0.0, 1.0, -0.1, 1.1, float("nan")])
def test_a_decay_outside_the_open_interval_is_refused(decay):
    with pytest.raises(InvalidConfig, match=f"ema is {decay}"):
        WeightAverage(network(), decay)


def test_weights_too_coarse_to_average_are_refused():
    with pytest.raises(InvalidModel, match=r"0\.weight has the dtype torch\.bfloat16"):
        WeightAverage(network().bfloat16(), 0.999)


def test_the_average_outlives_a_copy_of_the_model():
    model = network()
    average = WeightAverage(model, 0.9)
    twin = copy.deepcopy(model)
    move(model, 1)
    average.update()
    assert not same(dict(twin.state_dict()), average.state_dict())
