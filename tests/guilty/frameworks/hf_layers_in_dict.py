"""The Hugging Face Trainer: the layers are stored in a plain dict."""

from quiet_hf import Classifier, nn, trainer


class Model(Classifier):
    def __init__(self):
        super().__init__()
        self.blocks = {"first": nn.Linear(16, 16), "second": nn.Linear(16, 16)}  # <- MDL001

    def features(self, input_ids):
        x = self.embed(input_ids).mean(1)
        for block in self.blocks.values():
            x = x + block(x).relu()
        return self.hidden(x).relu()


trainer(Model()).train()
