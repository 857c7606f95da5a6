"""Arguments and outputs of models are converted to named tensors."""

import pytest
import torch
from torch import nn

from trueloop.core.errors import InvalidModel
from trueloop.export.call_signature import bind_tensors, name_outputs


class Two(nn.Module):
    def forward(self, image, mask=None, scale=1.0):
        return image


def test_arguments_have_the_names_of_parameters():
    a, b = torch.zeros(2), torch.ones(2)
    assert list(bind_tensors(Two(), (a,), {"mask": b})) == ["image", "mask"]
    assert list(bind_tensors(Two(), (), {"image": a})) == ["image"]


@pytest.mark.parametrize(
    ("args", "options", "named"),
    [
        ((torch.zeros(1),), {"scale": torch.zeros(1)}, "scale"),  # the call omits mask, which comes before
        ((torch.zeros(1), "dark"), {}, "argument mask of type str"),
        ((torch.zeros(1, dtype=torch.bfloat16),), {}, "argument image of type torch.bfloat16 tensor"),
    ],
)
def test_other_things_than_tensors_are_refused(args, options, named):
    with pytest.raises(InvalidModel, match=named):
        bind_tensors(Two(), args, options)


def test_results_by_name():
    one = torch.zeros(1)
    assert list(name_outputs(one)) == ["output"]
    assert list(name_outputs((one, one))) == ["output_0", "output_1"]
    assert list(name_outputs({"logits": one})) == ["logits"]
    for wrong in ("text", (one, None), [], {"a": 1.0}):
        with pytest.raises(InvalidModel, match="The model returns"):
            name_outputs(wrong)
