"""The Hugging Face Trainer: functional dropout in the model does not depend on the mode."""

from quiet_hf import Classifier, F, trainer


class Model(Classifier):
    def features(self, input_ids):
        return F.dropout(self.hidden(self.embed(input_ids).mean(1)).relu(), p=0.3)  # <- EVL004


trainer(Model()).train()
