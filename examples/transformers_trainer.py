"""Hugging Face's Trainer: `compute_loss` returns a dictionary of losses. All else is the Trainer's, as with one loss.

Run: pip install 'paretograd[transformers]'; python examples/transformers_trainer.py [--steps 100] [--seed 0]
"""

import argparse
import tempfile

import torch
from torch.nn import Linear, Module
from torch.nn.functional import cross_entropy
from transformers import BertConfig, BertModel, TrainingArguments, set_seed

import paretograd as pg
from paretograd.integrations.transformers import MultiObjectiveTrainer


class TwoHeads(Module):
    def __init__(self) -> None:
        super().__init__()
        sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
        self.bert = BertModel(BertConfig(vocab_size=17, hidden_size=32, **sizes), add_pooling_layer=False)
        self.kind, self.word = Linear(32, 2), Linear(32, 17)

    def forward(self, input_ids):
        states = self.bert(input_ids).last_hidden_state
        return {"kind": self.kind(states.mean(1)), "word": self.word(states)}


class TwoTasks(MultiObjectiveTrainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(inputs["input_ids"])
        losses = {name: cross_entropy(output.movedim(-1, 1), inputs[name]) for name, output in outputs.items()}
        return (losses, outputs) if return_outputs else losses


def make_data(count: int) -> list[dict[str, torch.Tensor]]:
    """Return sequences that count up or down (their kind), with a sixth of their words masked by 16."""
    kind, start = torch.randint(2, (count, 1)), torch.randint(4, (count, 1))
    words = (start + (2 * kind - 1) * torch.arange(8)) % 16
    hidden = torch.rand(count, 8) < 1 / 6
    columns = {"input_ids": words.where(~hidden, 16), "kind": kind[:, 0], "word": words.where(hidden, -100)}
    return [{name: column[k] for name, column in columns.items()} for k in range(count)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    set_seed(args.seed)
    options = {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 2, "learning_rate": 5e-3}
    options |= {"remove_unused_columns": False, "logging_steps": 1, "disable_tqdm": True, "report_to": "none"}
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(folder, max_steps=args.steps, use_cpu=True, **options)
        trainer = TwoTasks(TwoHeads(), arguments, train_dataset=make_data(1024), rule=pg.UPGrad())
        trainer.train()
    first, *_, last = [entry for entry in trainer.state.log_history if "loss" in entry]
    for name in ("mo/loss/kind", "mo/loss/word", "mo/gamma"):
        print(f"{name}: {first[name]:.4f} -> {last[name]:.4f}")
