"""The Hugging Face Trainer: a model that returns probabilities as its logits."""

from quiet_hf import Classifier, F, trainer


class Model(Classifier):
    def forward(self, input_ids, labels=None):
        logits = self.head(self.features(input_ids)).softmax(-1)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}  # <- LOS001


trainer(Model()).train()
