"""TRL: reinforcement learning (GRPO) of LoRA adapters with two rewards, each with a loss of its own.

GRPOTrainer adds up the rewards before its loss sees them. So three of its methods are extended, two of them private.

Run: pip install 'paretograd[transformers]' trl peft; python examples/trl_rewards.py [--steps 40] [--seed 0]
"""

import argparse
import tempfile

from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
from trl import GRPOConfig, GRPOTrainer

import paretograd as pg
from paretograd.integrations.transformers import MultiObjectiveTrainer


class SeveralRewards(MultiObjectiveTrainer, GRPOTrainer):
    def _calculate_rewards(self, *args):
        self.rewards = super()._calculate_rewards(*args)  # of all processes; a column for each reward
        return self.rewards

    def _generate_and_score_completions(self, inputs):
        found = super()._generate_and_score_completions(inputs)
        groups = self.rewards.unflatten(0, (-1, self.num_generations))
        advantages = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).flatten(0, 1)
        return found | {"each": advantages.chunk(self.accelerator.num_processes)[self.accelerator.process_index]}

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, each = super().compute_loss, zip(self.reward_func_names, inputs["each"].unbind(1), strict=True)
        return {name: loss(model, inputs | {"advantages": advantages}) for name, advantages in each}


def polite(completions, **_):
    return [float("please" in text) for text in completions]


def agrees(completions, **_):
    return [float("yes" in text and "no" not in text) for text in completions]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    set_seed(args.seed)
    words = {word: number for number, word in enumerate(["<pad>", "</s>", "<unk>", "answer", "no", "yes", "please"])}
    plain = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    batch = {"num_generations": 8, "per_device_train_batch_size": 32, "max_completion_length": 4}
    logs = {"report_to": "none", "logging_steps": 1, "disable_tqdm": True}
    with tempfile.TemporaryDirectory() as folder:
        trainer = SeveralRewards(
            LlamaForCausalLM(LlamaConfig(vocab_size=len(words), initializer_range=0.2, **sizes)),  # small and random
            reward_funcs=[polite, agrees],
            args=GRPOConfig(
                folder, max_steps=args.steps, learning_rate=0.02, use_cpu=True, bf16=False, **batch, **logs
            ),
            train_dataset=Dataset.from_list([{"prompt": "answer"}] * 32),
            processing_class=PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="<pad>", eos_token="</s>"),
            peft_config=LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM"),
            rule=pg.UPGrad(),
        )
        trainer.train()
    first, *_, last = [entry for entry in trainer.state.log_history if "loss" in entry]
    for name in ("rewards/polite/mean", "rewards/agrees/mean"):
        print(f"{name}: {first[name]:.4f} -> {last[name]:.4f}")


if __name__ == "__main__":
    main()
