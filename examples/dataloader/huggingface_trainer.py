"""The `Trainer` of Hugging Face with a map-style dataset of torch, of which it makes a DataLoader.

It resumes by reading the batches before the checkpoint once more, and dropping them.

It prints:

    60 steps in 3 epochs
"""

import tempfile

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from transformers.trainer_callback import PrinterCallback

ROWS, LENGTH, WORDS, EPOCHS = 160, 16, 50, 3


class Rows(Dataset):
    def __init__(self, rows):
        tokens = np.random.default_rng(0).integers(WORDS, size=(rows, LENGTH))
        self.tokens = torch.from_numpy(tokens)

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, number):
        return {"input_ids": self.tokens[number], "labels": self.tokens[number]}


def make_batches(rows=ROWS):
    """What the Trainer makes of the dataset."""
    return DataLoader(Rows(rows), batch_size=8, shuffle=True)


def main(folder):
    torch.manual_seed(1)
    sizes = {"vocab_size": WORDS, "n_positions": LENGTH, "n_embd": 16, "n_layer": 1, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    arguments = TrainingArguments(
        folder,
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=8,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        use_cpu=True,
    )
    trainer = Trainer(model, arguments, train_dataset=Rows(ROWS))
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    print(f"{trainer.state.global_step} steps in {EPOCHS} epochs")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(name)
