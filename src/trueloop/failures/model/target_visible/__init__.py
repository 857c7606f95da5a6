"""A model sees the target of each position in its input: a language model without a causal mask.

What you see
    The training loss and the validation loss fall close to zero within minutes, far below what the data allows. The
    generated text is nonsense or repeats one token, because the next token is not there when the model generates.

Why it happens
    The targets are the input shifted by one position, so the target of each position is the next token of the input. A
    ``TransformerEncoder`` without a mask, a bidirectional LSTM, a convolution with padding on both sides, or a mask
    that is added as zeros and ones, lets each position read it. Validation leaks in the same way, so it looks perfect.

Fix
    Let each position see only itself and earlier positions.

        x = self.blocks(x)  # wrong
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        x = self.blocks(x, mask=mask, is_causal=True)  # right

    If the targets are the input itself, shift them: ``logits[:, :-1]`` belongs to ``tokens[:, 1:]``.

When this is fine
    - A masked language model or a tagger, whose targets are not the next tokens of its input.
    - An encoder and decoder, where the decoder's input is shifted and masked, and the encoder sees the whole source.
    - An autoencoder, whose targets are its input and which sees all of it.

How it is detected
    In one of the first updates, the sanitizer compares the targets of the loss with the model's arguments by value. If
    95 % of them are the next position of an argument, it runs the model again on a copy of its state, with other values
    after a position in the middle. It is an error if the output at that position changes by more than a thousandth of
    the spread of the outputs; the output of a causal model does not change at all. If all targets are equal to the
    position's own token, a model that sees earlier and no later positions gets a warning. Models on a GPU, models with
    forward hooks, and positions that are packed or selected by a mask before the loss are not judged.

    The linter reports a ``TransformerEncoder``, an attention or a bidirectional layer that a ``forward`` calls without
    a mask, if the program has an embedding and a cross-entropy, makes no causal mask that it reads, takes two slices
    of one sequence that are shifted by one position, and has no decoder or second input. It also reports a decoder that
    gets ``targets[:, t]`` at the step of a loop that predicts this token, and ``model(source, targets[:, 1:])`` in a
    loss with ``targets[:, 1:]``.

References
    karpathy/minGPT#75, on the causal mask, https://github.com/karpathy/minGPT/issues/75
    pytorch/examples#649, "Transformer Language Model Example Wrong Mask", https://github.com/pytorch/examples/issues/649
    torch.nn.Transformer.generate_square_subsequent_mask,
    https://docs.pytorch.org/docs/stable/generated/torch.nn.Transformer.html
"""

from collections.abc import Iterator

from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Evidence
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.model.target_visible.no_causal_mask import find_missing_masks
from trueloop.failures.model.target_visible.own_target_fed import find_fed_targets, find_unshifted_inputs
from trueloop.tracing.events import InformationFlowProbed, TargetSeen


class Detector(BaseDetector):
    """Reports a model whose output at a position depends on the target of that position."""

    def __init__(self) -> None:
        self._judged, self._obstacle = False, ""

    def on_information_flow_probed(self, event: InformationFlowProbed) -> Evidence | None:
        """Return evidence if a position of the model sees its target."""
        self._judged |= event.causal
        seen = event.target_seen
        if seen is None:
            return None
        if not seen.shifted:
            return Evidence(
                message=f"The targets of `{event.model.name}` are its input, not shifted: each position is trained to "
                "repeat the token that it is given, and never to predict the next one.",
                location=event.called_at,
                severity=Severity.WARNING,
                fix="Compare the logits of each position with the next token: logits[:, :-1] with tokens[:, 1:].",
            )
        return Evidence(
            message=f"Each position of `{event.model.name}` sees its own target. {_facts(seen)}",
            location=seen.location or event.called_at,
            related=((event.called_at, "the model is called here"),) if seen.location and event.called_at else (),
        )

    def inconclusive(self) -> str:
        """Return a reason if no model was judged."""
        if self._judged:
            return ""
        return self._obstacle or "no model whose targets are its input, shifted by one position, was repeated"


def _facts(seen: TargetSeen) -> str:
    return (
        "The targets are the input shifted by one position, and the output at position "
        f"{seen.position} of {seen.steps} changes by {seen.change:.2g} of its spread if only later positions change."
    )


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield what lets a position see its target: a layer without a causal mask, or the target as the input."""
    yield from find_missing_masks(source)
    yield from find_fed_targets(source)
    yield from find_unshifted_inputs(source)


RULE = Rule(
    required_words=(
        "TransformerEncoder|MultiheadAttention|scaled_dot_product|softmax|bidirectional|range(",
        "Embedding(",
        "cross_entropy|CrossEntropyLoss|nll_loss|NLLLoss",
        "1:|1 :|range(",
    ),
    find=find,
)

BAD = """
import torch
import torch.nn.functional as F
from torch import nn


class LanguageModel(nn.Module):
    def __init__(self, vocabulary=12, width=16):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 2, 32, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        x = self.embedding(tokens)
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        x = self.blocks(x)
        return self.head(x)


torch.manual_seed(0)
model = LanguageModel()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for step in range(20):
    tokens = torch.randint(12, (16, 9))
    optimizer.zero_grad()
    logits = model(tokens[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
"""

FAILURE = Failure(
    code="MDL014",
    title="A position sees its own target",
    severity=Severity.ERROR,
    bad=BAD,
    good=changed(BAD, {"x = self.blocks(x)": "x = self.blocks(x, mask=mask, is_causal=True)"}),
    fix="Mask later positions: a causal mask, a unidirectional layer, or padding on the left only.",
    rule=RULE,
    detector=Detector,
)
