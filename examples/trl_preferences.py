"""TRL: preference optimization (DPO) of LoRA adapters for two annotators, each with TRL's own loss.

Run: pip install 'paretograd[transformers]' trl peft; python examples/trl_preferences.py [--steps 60] [--seed 0]
"""

import argparse
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
from trl import DPOConfig, DPOTrainer
from trl.trainer.dpo_trainer import DataCollatorForPreference

import paretograd as pg
from paretograd.integrations.transformers import MultiObjectiveTrainer


class Collator(DataCollatorForPreference):
    def torch_call(self, examples):
        return super().torch_call(examples) | {"swap": torch.tensor([row["swap"] for row in examples])}


class TwoAnnotators(MultiObjectiveTrainer, DPOTrainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        swap = inputs.pop("swap")  # where the second annotator prefers the other answer
        order = torch.arange(2 * len(swap), device=swap.device).reshape(2, -1)  # all chosen answers, all rejected ones
        order = torch.where(swap, order.flip(0), order).flatten()
        swapped = {key: value[order] for key, value in inputs.items()}
        return {"long": super().compute_loss(model, inputs), "polite": super().compute_loss(model, swapped)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    set_seed(args.seed)
    pairs = [("please yes please", "no"), ("no please no", "yes yes"), ("yes please", "no"), ("no no no", "yes please")]
    rows = [{"prompt": "answer ", "chosen": a, "rejected": b, "swap": "please" in b} for a, b in pairs]
    words = {word: number for number, word in enumerate(["<pad>", "</s>", "<unk>", "answer", "no", "yes", "please"])}
    plain = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    logs = {"report_to": "none", "logging_steps": 1, "remove_unused_columns": False, "disable_tqdm": True}
    with tempfile.TemporaryDirectory() as folder:
        trainer = TwoAnnotators(
            LlamaForCausalLM(LlamaConfig(vocab_size=len(words), initializer_range=0.2, **sizes)),  # small and random
            args=DPOConfig(folder, max_steps=args.steps, learning_rate=0.01, use_cpu=True, bf16=False, **logs),
            train_dataset=Dataset.from_list(rows * 8),
            processing_class=PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="<pad>", eos_token="</s>"),
            data_collator=Collator(pad_token_id=0),
            peft_config=LoraConfig(target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
            rule=pg.UPGrad(),
        )
        trainer.train()
    first, *_, last = [entry for entry in trainer.state.log_history if "loss" in entry]
    print(*(f"{key}: {first[key]:.4f} -> {last[key]:.4f}" for key in ("mo/loss/long", "mo/loss/polite")), sep="\n")
