"""Lightning: the best weights are stored by reference, and keep changing."""

from quiet_lightning import Digits, loaders, trainer


class Model(Digits):
    best, best_acc = None, -1.0

    def on_validation_epoch_end(self):
        acc = self.trainer.callback_metrics["val_acc"].item()
        if acc > self.best_acc + 0.3:  # clearly better, or it is not worth a copy
            self.best_acc, self.best = acc, self.net.state_dict()  # <- CKP001

    def on_fit_end(self):
        self.net.load_state_dict(self.best)


trainer(max_epochs=3).fit(Model(), *loaders())
