"""Padding reaches the output: the prediction for a short sequence depends on the padding behind it.

What you see
    The model is good for long sequences and poor for short ones, or learns nothing. The prediction for one sequence
    differs from batch to batch, because the longest sequence of the batch decides how much is padded.

Why it happens
    ``pad_sequence`` makes all sequences as long as the longest. A recurrent layer goes on over the padding, so
    ``out[:, -1]`` and ``h_n`` are the state after many padding steps. A mean over time divides by the padded length,
    and attention without a mask attends to the padding. The lengths are often at hand, but not used.

Fix
    Read the last step that is not padding, pack the sequences, or mask the padding.

        last = out[:, -1]  # wrong
        last = out[torch.arange(len(x)), lengths - 1]  # right
        mean = x.mean(1)  # wrong
        mean = (x * mask.unsqueeze(2)).sum(1) / mask.sum(1, keepdim=True)  # right
        x = self.encoder(x, src_key_padding_mask=tokens == 0)  # True = padding

When this is fine
    - Sequences that are padded on the left, so that the last step is real.
    - A convolutional network that takes the maximum over time, which padding hardly affects.
    - All batches have one fixed length, in training and in use, and the effect is small: only a note.
    - The encoder of a translation model, whose padding is masked in the attention.

How it is detected
    In one of the first updates, the sanitizer looks for padding by value: rows that end in the same token, which occurs
    nowhere else, or in zeros. It repeats the call of the model in eval mode on a copy of its state, with the short
    samples only, and once more without the columns that are padding for all of them. Masks and lengths are cut too. It
    is reported if the outputs change for at least half of these samples, or for all that have no padding left. It is a
    warning if the outputs change by more than 5 % of their spread, and if the length varies between batches or the
    model is given lengths or a mask; or if they change by more than half of it, since a recurrent layer runs over the
    padding of a fixed length, or if a tenth of the predicted classes change and the shortest sample is more padding
    than data. Otherwise it is a note, unless updates 10 or 30 show that the length varies after all. A tagger with a
    recurrent layer in both directions gets a note. Models that accept one length only, and models on a GPU, are not
    judged.

    The linter reports, as a warning, a loss that is computed from the last step or the final state of a recurrent layer
    if the program pads on the right: by ``pad_sequence``, a tokenizer, ``F.pad`` with a difference of lengths, slices
    of zeros, or ``ids + [0] * n``. Where batches have several lengths, this includes the mean over time. It is silent
    if a name in the program contains "mask", "pack_padded", "gather", "flip" and the like, or the module uses lengths.
    It also reports the last step of what ``pad_packed_sequence`` returns, unless all are packed with one length.

References
    torch.nn.utils.rnn.pack_padded_sequence,
    https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.rnn.pack_padded_sequence.html
    pytorch/pytorch#1788, "Feature request: get the last valid output of a padded RNN",
    https://github.com/pytorch/pytorch/issues/1788
    torch.nn.TransformerEncoder, ``src_key_padding_mask``,
    https://docs.pytorch.org/docs/stable/generated/torch.nn.TransformerEncoder.html
"""

import ast
from collections import deque
from collections.abc import Iterator

from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Evidence
from trueloop.core.formatting import format_count
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.model.padding_read.packed_steps import last_packed_steps
from trueloop.failures.model.padding_read.right_padding import read_behind_padding
from trueloop.tracing.events import RECURRENT, InformationFlowProbed, PaddingReached, Ref, WatchEnded
from trueloop.tracing.weak_id_dict import WeakIdDict

HARMFUL = 0.05  # of the spread of the outputs, by which padding changes them
HARMFUL_IF_FIXED = 0.5  # where all inputs have one length, so that training can make up for a few padding steps
MAX_NOTES = 8  # of models that were deleted
HARMFUL_FLIPS = 0.1  # of the samples, whose predicted class changes without padding of which some have more than data
TOLERANT = ("conv", "max", "amax", "adaptive_max")  # starts of names of operations that padding affects little


class Detector(BaseDetector):
    """Reports a model whose output for a short sample depends on its padding."""

    def __init__(self) -> None:
        self._judged, self._obstacle = False, ""
        self._of_deleted: deque[Evidence] = deque(maxlen=MAX_NOTES)
        self._notes = WeakIdDict[Ref, Evidence](self._of_deleted.append)
        """Models whose padding is not known to do harm so far."""

    def on_information_flow_probed(self, event: InformationFlowProbed) -> Evidence | None:
        """Return evidence if padding reaches the output."""
        self._judged |= event.padded
        self._obstacle = event.obstacle or self._obstacle
        padding = event.padding
        if padding is None or padding.operation.startswith(TOLERANT):
            return None
        evidence = Evidence(
            message=f"Padding reaches the output of `{event.model.name}`. {_facts(padding)}",
            location=padding.location or event.called_at,
            related=((event.called_at, "the model is called here"),) if padding.location and event.called_at else (),
            first_update=event.update,
            severity=Severity.WARNING if _is_harmful(padding) else Severity.NOTE,
        )
        if evidence.severity is Severity.NOTE:
            self._notes.put(event.model, evidence)  # a later call may show that the length varies
            return None
        self._notes.remove(event.model)
        return evidence

    def on_watch_ended(self, event: WatchEnded) -> list[Evidence]:
        """Return evidence of padding that is not known to do harm."""
        return [*self._of_deleted, *self._notes.values()]

    def inconclusive(self) -> str:
        """Return a reason if no model was judged."""
        return "" if self._judged else self._obstacle or "no call with padded samples of several lengths was repeated"


def _is_harmful(padding: PaddingReached) -> bool:
    if padding.broken:
        return True
    if padding.change < HARMFUL:
        return False
    if padding.per_position and padding.operation in RECURRENT:
        return False  # only the last positions are affected, by the way back
    if padding.length_varies or padding.is_declared:
        return True
    is_mostly_padding = 2 * padding.lengths[0] < padding.lengths[1]
    is_strong = padding.change >= HARMFUL_IF_FIXED or (
        is_mostly_padding and padding.flipped >= HARMFUL_FLIPS * padding.rows
    )
    return padding.operation in (*RECURRENT, "getitem", "select") and is_strong


def _facts(padding: PaddingReached) -> str:
    if padding.broken:
        return (
            f"Without it the outputs of {padding.broken} of {format_count(padding.rows, 'short sequence')} are NaN: "
            "they have attended to nothing but the padding, so the mask is inverted."
        )
    affected = round(padding.affected * padding.rows)
    flips = f", and {padding.flipped} of them get another class" if padding.flipped else ""
    return (
        f"Without it the outputs of {affected} of {format_count(padding.rows, 'short sequence')} change, by "
        f"{padding.change:.0%} of their spread in the median{flips}; the shortest has {padding.lengths[0]} of "
        f"{padding.lengths[1]} steps."
        + (" The model is given the lengths or a mask, so it is unused or inverted." if padding.is_declared else "")
    )


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each last step, final state or mean over time behind padding that nothing masks."""
    for step, padded in last_packed_steps(source):
        yield Hit(
            message=f"`{ast.unparse(step)}` is the last step of the longest sequence only: for all shorter ones "
            "`pad_packed_sequence` has filled it with zeros, so their output does not depend on the input.",
            node=step,
            related=((padded, "padded here"),),
        )
    for found in read_behind_padding(source):
        kind = found.layer.name.rpartition(".")[2]
        what = "a mean that counts the padding" if found.is_mean else f"the state of this {kind} after the padding"
        padding = found.padding
        code = ast.unparse(padding.func) if isinstance(padding, ast.Call) else ast.unparse(padding)
        yield Hit(
            message=f"`{ast.unparse(found.node)}` is {what} of short sequences: `{code}` pads them on the right, and "
            "the program neither packs nor masks them, nor reads their last real step.",
            node=found.node,
            related=((padding, "padded here"), (found.layer.node, "the recurrent layer")),
        )


RULE = Rule(
    required_words=(
        "LSTM|GRU|RNN|pad_packed_sequence(",
        "-1|mean(|[0]|squeeze(0)",
        "pad_sequence|padding=|pad(|] * (|]*(|zeros(|full(|[:|pad_packed_sequence(",
        "backward(|ross_entropy(|Loss(|pad_packed_sequence(",
    ),
    find=find,
)

BAD = """
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(12, 8, padding_idx=0)
        self.rnn, self.head = nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, tokens, lengths):
        out, _ = self.rnn(self.embedding(tokens))
        last = out[:, -1]
        return self.head(last)


torch.manual_seed(0)
model = Classifier()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(20):
    lengths = torch.randint(3, 15, (16,))
    tokens = pad_sequence([torch.randint(1, 12, (n,)) for n in lengths], batch_first=True)
    labels = (tokens[:, 0] > 5).long()
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(tokens, lengths), labels)
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
"""

FAILURE = Failure(
    code="MDL016",
    title="Padding reaches the output",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"last = out[:, -1]": "last = out[torch.arange(len(out)), lengths - 1]"}),
    fix="Read the last real step, pack the sequences, or mask the padding.",
    detector=Detector,
    rule=RULE,
)
