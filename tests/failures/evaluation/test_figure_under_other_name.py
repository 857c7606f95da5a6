"""EVL036: figures under the name of another one."""

import pytest

HEAD = """
import matplotlib.pyplot as plt
import torch

train_loss, val_loss = fit(model), judge(model)
train_accs, test_accs = accuracies(model)
"""
FAULTY = {
    "a list": "val_losses.append(train_loss)  # <- EVL036",
    "an entry": "history['val_loss'] = train_loss.item()  # <- EVL036",
    "a dictionary": "wandb.log({'train/loss': train_loss, 'val/loss': train_loss})  # <- EVL036",
    "a scalar": "writer.add_scalar('Loss/train', val_loss, epoch)  # <- EVL036",
    "a file": "torch.save(train_accs, name + '_test.pt')  # <- EVL036",
    "a legend": "plt.plot(train_accs, label='Test accuracy')  # <- EVL036",
    "a format": "print(f'train loss {train_loss:.3f}, val loss {train_loss:.3f}')  # <- EVL036",
}
CORRECT = {
    "right names": """
val_losses.append(val_loss)
writer.add_scalar('Loss/train', train_loss, epoch)
print(f'train loss {train_loss:.3f}, val loss {val_loss:.3f}')
plt.plot(train_accs, label='Train accuracy')
""",
    "both words": "history['train_acc_at_best_val'] = train_accs",
    "a condition": "if val_loader is None:\n    history['val_loss'] = train_loss",
    "no other variable": "val_rewards.append(train_reward)",
    "no figure": "torch.save(train_model, 'test.pt')",
    "several values": "print('test', train_loss, val_loss)",
    "a table of the other part": "val_rows['train_loss'] = train_loss",
    "labels behind the figures": "torch.save(model, f'{epoch}_{train_loss:.3f}loss(train)_{val_loss:.3f}loss.pt')",
    "two kinds of held-out data": "writer.add_scalar('Loss/test', val_loss, epoch)",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_figures_of_the_other_part(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_other_figures(lint_codes, script):
    assert "EVL036" not in lint_codes(HEAD + script)


SCRIPT = """
import numpy as np

def fit(model, optimizer, writer, history, train_losses, val_losses, test_accs):
    for epoch in range(5):
        train_loss, train_acc = train_epoch(model, optimizer)
        val_loss, val_acc = validate(model)
        d_loss, g_loss = adversarial(model)
        test_acc = judge(model)
        loss.backward()
        {line}
"""
LOGGED = (
    'writer.add_scalar("Loss/val", train_loss, epoch)',
    'writer.add_scalar("train/accuracy", train_loss, epoch)',
    'wandb.log({"val_loss": train_loss, "epoch": epoch})',
    'self.log("val_acc", train_acc.item())',
    'history["val_loss"].append(train_loss / 10)',
    "val_losses.append(np.mean(train_losses))",
    'history["trainAcc"].append(float(val_acc))',
    "test_accs.append(val_acc)",
    'writer.add_scalar("D_loss", g_loss.item(), epoch)',
    'history["validation_loss"] = train_loss',
    'results = {"test_acc": val_acc}',
    'history["eval_loss"].append(train_loss)',
)
LOGGED_RIGHT = (
    'writer.add_scalar("Loss/val", val_loss, epoch)',
    'writer.add_scalars("loss", {"train": train_loss, "val": val_loss}, epoch)',
    'wandb.log({"loss": train_loss, "test_loss": val_loss})',
    'self.log("val_train_gap", train_loss)',
    "val_losses.append(1 - train_acc)",
    'history["loss_of_accurate_runs"].append(train_loss)',
    'writer.add_scalar("loss/g_and_d", g_loss, epoch)',
    'config = {"train_path": val_path, "test_loader": val_loader}',
    'history["epoch"].append(train_loss)',
    "test_loss = []; test_loss.append(val_loss)",
    'batch["train_mask"] = val_mask',
    "loss_val = loss.item(); train_losses.append(loss_val)",
    'history["test_loss"].append(eval_loss); best_test_loss = min(best_test_loss, eval_loss)',
)


@pytest.mark.parametrize("line", LOGGED)
def test_lint_reports_logged_figures(lint_reports, line):
    lint_reports(SCRIPT.replace("{line}", f"{line}  # <- EVL036"))


@pytest.mark.parametrize("line", LOGGED_RIGHT)
def test_lint_ignores_right_names(lint_is_clean, line):
    lint_is_clean(SCRIPT.replace("{line}", line), "EVL036")
