"""Lightning with a DataLoader. A checkpoint in the middle of an epoch does not have the position.

Lightning warns, begins the epoch again and ends it after as many batches as were left.

It prints:

    resumed with 16 batches of epoch 2, then 20 of epoch 3
    the weights are those of a training without interruption: False
"""

import logging
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

ROWS, FEATURES, EPOCHS = 2000, 16, 3


def make_batches(rows=ROWS):
    x = np.random.default_rng(0).normal(size=(rows, FEATURES)).astype(np.float32)
    dataset = TensorDataset(torch.from_numpy(x), torch.from_numpy(x.sum(1)))
    return DataLoader(dataset, batch_size=100, shuffle=True)


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(FEATURES, 1)
        self.trained = {}  # how many batches of each epoch

    def training_step(self, batch, number):
        epoch = self.current_epoch + 1
        self.trained[epoch] = self.trained.get(epoch, 0) + 1
        x, y = batch
        return torch.nn.functional.mse_loss(self.layer(x).squeeze(1), y)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def train(folder, max_steps=-1, resume_from=None):
    seed_everything(1, verbose=False)
    model = Model()
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=EPOCHS,
        max_steps=max_steps,
        callbacks=[ModelCheckpoint(folder, "{step}", every_n_train_steps=8, save_top_k=-1)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, train_dataloaders=make_batches(), ckpt_path=resume_from)
    return model


def main(folder):
    train(folder / "stopped", max_steps=27)
    resumed = train(folder / "stopped", resume_from=folder / "stopped" / "step=24.ckpt")
    second, third = resumed.trained[2], resumed.trained[3]
    print(f"resumed with {second} batches of epoch 2, then {third} of epoch 3")
    other = train(folder / "not stopped")
    same = torch.equal(resumed.layer.weight, other.layer.weight)
    print(f"the weights are those of a training without interruption: {same}")


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))
