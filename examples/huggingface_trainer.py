"""The `Trainer` of Hugging Face reads a dataset and resumes it without reading anything twice.

By itself, the Trainer resumes by reading all batches of the epoch again and dropping them. Here a
callback saves the position with each checkpoint, and `ignore_data_skip` leaves the rest to it. The
resumed training ends with the same weights as one that was never interrupted.

It prints:

    stopped in step 27 of 60; the last checkpoint is of step 24
    resumed and read 36 batches
    the weights are those of a training without interruption: True
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback
from transformers.trainer_utils import get_last_checkpoint

from penstock.data import Dataset

ROWS, LENGTH, WORDS, EPOCHS = 160, 16, 50, 3


def make_batches(rows=ROWS):
    tokens = np.random.default_rng(0).integers(WORDS, size=(rows, LENGTH))
    dataset = Dataset.from_tensor_slices({"input_ids": tokens, "labels": tokens})
    return dataset.shuffle(rows, seed=1).batch(8).prefetch(2).as_torch()


class ResumingTrainer(Trainer):
    def get_train_dataloader(self):
        return self.train_dataset  # It makes the batches, so it needs no DataLoader.


class SavePosition(TrainerCallback):
    """Saves the position in the data into the folder of each checkpoint."""

    def __init__(self, batches, stop_at=None):
        self.batches, self.stop_at, self.steps = batches, stop_at, 0

    def on_save(self, args, state, control, **kwargs):
        folder = Path(args.output_dir, f"checkpoint-{state.global_step}")
        (folder / "input.json").write_text(json.dumps(self.batches.state_dict()))

    def on_step_end(self, args, state, control, **kwargs):
        self.steps += 1
        control.should_training_stop = state.global_step == self.stop_at  # in place of a crash


def train(folder, stop_at=None):
    torch.manual_seed(1)
    sizes = {"vocab_size": WORDS, "n_positions": LENGTH, "n_embd": 16, "n_layer": 1, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    arguments = TrainingArguments(
        str(folder),
        num_train_epochs=EPOCHS,
        save_steps=8,
        ignore_data_skip=True,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        use_cpu=True,
    )
    batches = make_batches()
    callback = SavePosition(batches, stop_at)
    trainer = ResumingTrainer(model, arguments, train_dataset=batches, callbacks=[callback])
    trainer.remove_callback(PrinterCallback)
    saved = get_last_checkpoint(folder)
    if saved is not None:
        batches.load_state_dict(json.loads(Path(saved, "input.json").read_text()))
    trainer.train(resume_from_checkpoint=saved)
    return model, callback.steps


def main(folder):
    train(folder / "stopped", stop_at=27)
    saved = Path(get_last_checkpoint(folder / "stopped")).name
    print(f"stopped in step 27 of 60; the last checkpoint is of step {saved.split('-')[1]}")
    resumed, steps = train(folder / "stopped")
    print(f"resumed and read {steps} batches")
    other, _ = train(folder / "not stopped")
    pairs = zip(resumed.parameters(), other.parameters(), strict=True)
    same = all(torch.equal(a, b) for a, b in pairs)
    print(f"the weights are those of a training without interruption: {same}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        for part in ("stopped", "not stopped"):
            Path(name, part).mkdir()
        main(Path(name))
