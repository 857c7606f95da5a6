"""What the processes say to one another: as little as there is to say, and nothing else."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import TensorDataset

from trueloop import Loss, ParallelConfig, TrainConfig, Trainer
from trueloop.core.errors import InvalidConfig, InvalidData, InvalidModel, ProcessLost
from trueloop.training.distributed.ddp import DdpParallel
from trueloop.training.distributed.processes import join_processes
from trueloop.training.objective import as_objective

CPU = torch.device("cpu")
DATA = TensorDataset(torch.arange(48.0).view(12, 4) / 48, torch.arange(12.0) % 3)


class Fork(nn.Module):
    """Uses one branch or the other."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right = nn.Linear(4, 1), nn.Linear(4, 1)
        self.side = "left"

    def forward(self, x):
        return getattr(self, self.side)(x).squeeze(1).clone()  # fully_shard warns of views


def squared(model, batch):
    x, y = batch
    return (model(x) - y).square().sum(), float(len(y))


def trainer(model, objective=squared, **settings):
    config = {"epochs": 1, "effective_batch": 6, "micro_batch": 1, "device": "cpu", "workers": 0, **settings}
    return Trainer(model=model, objective=objective, config=TrainConfig(**config))


def collectives(engine, windows):
    """Train windows of three micro-batches on each process; count the collectives of each kind by name."""
    model = Fork()
    model.right.requires_grad_(False)
    data = TensorDataset(*(torch.cat([each] * windows)[: 6 * windows] for each in DATA.tensors))
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        trainer(model, parallel=ParallelConfig(engine=engine)).fit(data)
    return {event.key: event.count for event in profiler.key_averages() if event.key.startswith("gloo:")}


def collectives_of_both():
    # DDP sets up in the first window, and sorts its buckets in the third
    return {engine: [collectives(engine, windows) for windows in (3, 5)] for engine in ("ddp", "fsdp")}


@pytest.mark.shards_on_cpu
def test_gradients_travel_once_per_window_and_counts_with_them(run_processes):
    one, other = run_processes(collectives_of_both, processes=2)
    assert one == other
    for engine, more in {
        "ddp": {"gloo:all_reduce": 1},  # one bucket, in which sums and counts travel; nothing else is said
        # Every micro-batch gathers the weights; gradients are scattered once, by what gloo has for that; then one
        # message with sums, counts and the norm.
        "fsdp": {"gloo:all_reduce": 1, "gloo:all_gather": 3 + 1},
    }.items():
        short, long = one[engine]
        assert {name: (long[name] - short[name]) / 2 for name in long if long[name] != short[name]} == more


def another_branch():
    """The second window uses what the first one did not, once without and once with the setting for it."""
    results = []
    for setting in ("auto", "always"):
        model = Fork()
        calls = []

        def objective(model, batch, calls=calls):
            calls.append(None)
            model.side = "left" if len(calls) <= 3 else "right"
            return squared(model, batch)

        try:
            trainer(model, objective, parallel=ParallelConfig(find_unused_parameters=setting)).fit(DATA)
            results.append(model.right.weight.detach().clone())
        except InvalidModel as error:
            results.append(str(error))
    return results


def test_a_parameter_that_is_used_later_only_is_trained(run_processes):
    """The first window leaves `right` unused, so DDP looks for unused ones in every later window too."""
    one, other = run_processes(another_branch, processes=2)
    for mine, theirs in zip(one, other, strict=True):
        assert torch.equal(mine, theirs)
        assert not torch.equal(mine, Fork().right.weight)


def unused_later():
    model = Fork()
    calls = []

    def objective(model, batch):
        calls.append(None)
        x, y = batch
        both = model.left(x) + model.right(x) if len(calls) <= 3 else model.left(x)
        return (both.squeeze(1) - y).square().sum(), float(len(y))

    with pytest.raises(InvalidModel, match="find_unused_parameters = .always"):
        trainer(model, objective).fit(DATA)
    model, calls[:] = Fork(), []
    trainer(model, objective, parallel=ParallelConfig(find_unused_parameters="always")).fit(DATA)
    return model.right.weight.detach().clone()


def test_a_parameter_that_goes_unused_is_named_at_once(run_processes):
    one, other = run_processes(unused_later, processes=2)
    assert torch.equal(one, other)


def one_branch_each(engine):
    """Each process uses a branch of its own, of the same shape as the other's."""
    model, here = Fork(), join_processes(CPU)

    def objective(model, batch):
        model.side = ("left", "right")[here.rank]
        return squared(model, batch)

    trainer(model, objective, parallel=ParallelConfig(engine=engine)).fit(DATA)
    return torch.cat([each.detach().flatten() for each in model.parameters()])


def sharded_branches():
    with pytest.raises(InvalidModel) as error:
        one_branch_each("fsdp")
    return error.value.what


@pytest.mark.shards_on_cpu
def test_branches_of_a_process_s_own_are_trained_whole_and_refused_where_sharded(run_processes):
    """FSDP would add the gradient of the one to that of the other, and say nothing."""
    one, other = run_processes(one_branch_each, "ddp", processes=2)
    assert torch.equal(one, other)
    assert all(map(torch.ne, one, torch.cat([each.detach().flatten() for each in Fork().parameters()])))
    printed = "In this window left.weight got a gradient on process 0, but none on process 1."
    assert run_processes(sharded_branches, processes=2) == [printed, printed]


def odd_label(engine):
    """Train on labels of which one, in one process's share, is out of range."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), *(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(3)))
    data = TensorDataset(DATA.tensors[0], torch.where(torch.arange(12) == 7, 9, 0))
    with pytest.raises((IndexError, InvalidData, ProcessLost)) as error:
        trainer(model, nn.CrossEntropyLoss(), parallel=ParallelConfig(engine=engine, timeout_s=60)).fit(data)
    return str(error.value).split("\n", 1)[0]


@pytest.mark.parametrize(
    ("engine", "printed"),
    [
        ("ddp", "Label 9 is out of range"),
        pytest.param("fsdp", "Target 9 is out of bounds", marks=pytest.mark.shards_on_cpu),
    ],
)
def test_an_error_in_one_process_s_share_is_its_own_and_ends_the_others_at_once(run_processes, engine, printed):
    results = sorted(run_processes(odd_label, engine, processes=2))
    assert results[0] == "Another process of this run is gone, or cannot be reached."
    assert results[1].startswith(printed)


def run_together():
    here, results = join_processes(CPU), []
    for model in (nn.BatchNorm1d(3), nn.Sequential(nn.Linear(3, 3), nn.SyncBatchNorm(3))):
        results.append(DdpParallel(model, model, as_objective(squared), here).collective_forward)
    return results


def test_a_model_with_synchronised_statistics_is_run_by_all_or_none(run_processes):
    assert run_processes(run_together, processes=2) == [[False, True]] * 2


def message():
    here = join_processes(CPU)
    results = {
        "total": here.all_reduce_sum([here.rank + 1.0, torch.tensor(2.0), 2.0**24 + 1]),  # which float32 does not hold
        "gather": here.all_gather_object({"rank": here.rank}),
        "share": here.broadcast_object(f"from {here.rank}"),
        "stop": here.any_rank_stops(here.rank == 1),
    }
    tensors = [
        torch.full((2,), float(here.rank)),
        torch.tensor(here.rank == 0),
        torch.empty(0),
        torch.tensor(here.rank + 7),
    ]
    tensors.append(torch.arange(6.0).view(2, 3).t() * (here.rank + 1))
    here.broadcast(tensors)
    little = [torch.full((3,), here.rank + 0.5), torch.tensor([here.rank], dtype=torch.int64)]
    large = [torch.full((2**15,), float(here.rank))]
    both = [here.all_reduce_sum_and_broadcast([1.0, here.rank], each) for each in (little, large, [])]
    here.stop_agreed = False
    before = (here.all_reduce_sum([0.0]), here.stop_agreed)
    here.stop_requested = here.rank == 1
    after = (here.all_reduce_sum([0.0]), here.stop_agreed)
    return {
        **results,
        "spread": [t.tolist() for t in tensors],
        "both": both,
        "along": [little[0].tolist(), little[1].item(), large[0].sum().item()],
        "before": before,
        "after": after,
    }


def test_the_words_they_exchange(run_processes):
    results = run_processes(message, processes=3)
    assert results[0] == results[1] == results[2]
    assert results[0]["total"] == [6.0, 6.0, 3 * 2.0**24 + 3]
    assert results[0]["gather"] == [{"rank": rank} for rank in range(3)]
    assert results[0]["share"] == "from 0"
    assert results[0]["stop"] is True
    assert results[0]["spread"] == [[0.0, 0.0], True, [], 7, [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]]
    assert results[0]["both"] == [[3.0, 3.0]] * 3
    assert results[0]["along"] == [[0.5] * 3, 0, 0.0]
    assert results[0]["before"] == ([0.0], False)
    assert results[0]["after"] == ([0.0], True)


def different_models():
    torch.manual_seed(join_processes(CPU).rank)
    model = nn.Linear(4, 1 + join_processes(CPU).rank)
    with pytest.raises(InvalidModel) as raised:
        trainer(model).fit(DATA)
    same = nn.Linear(4, 1)
    trainer(same, lambda model, batch: Loss(sum=model(batch[0]).sum(), count=float(len(batch[0])))).fit(DATA)
    return str(raised.value), same.weight.detach()


def of_the_program(backend):
    dist.init_process_group(backend)
    try:
        return join_processes(CPU).all_reduce_sum([1.0])
    except InvalidConfig as error:
        return error.what


def test_a_group_of_the_program_s_own_is_used_where_hosts_can_talk_in_it(run_processes):
    assert run_processes(of_the_program, "cpu:gloo", processes=2) == [[2.0], [2.0]]
    refused = "The program has created its process group for cuda:gloo only."  # as after backend="nccl"
    assert run_processes(of_the_program, "cuda:gloo", processes=2) == [refused, refused]
    assert run_processes(of_the_program, "cuda:gloo", processes=1) == [[1.0]]


def test_models_of_other_shapes_are_refused_and_other_weights_made_alike(run_processes):
    (printed, one), (_, other) = run_processes(different_models, processes=2)
    assert "Process 1 has built a different model than process 0: weight is ((2, 4)" in printed
    assert torch.equal(one, other)


def test_a_process_alone_never_touches_torch_distributed():
    assert join_processes(CPU).size == 1
    assert not dist.is_initialized()
