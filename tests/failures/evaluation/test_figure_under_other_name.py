"""EVL036: figures of the training under the name of the validation."""

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
    "both words": "history['train_acc_at_best_val'] = train_loss",
    "a condition": "if val_loader is None:\n    history['val_loss'] = train_loss",
    "no other variable": "val_rewards.append(train_reward)",
    "no figure": "torch.save(train_model, 'test.pt')",
    "several values": "print('test', train_loss, val_loss)",
    "a table of the other part": "val_rows['train_loss'] = train_loss",
    "two kinds of held-out data": "writer.add_scalar('Loss/test', val_loss, epoch)",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_figures_of_the_other_part(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_other_figures(lint_codes, script):
    assert "EVL036" not in lint_codes(HEAD + script)
