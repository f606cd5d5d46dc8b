"""TRL's trainers under `MultiObjectiveTrainer`: with equal objectives they are TRL's own, to float rounding."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from support.agreement import agree
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer

import paretograd as pg

EXAMPLES = Path(__file__).parents[1] / "examples"
WORDS = ["<pad>", "</s>", "<unk>", "answer", "no", "yes", "please"]


def trainer(kind: type, config: type, folder: Path, **options: Any) -> Any:
    """Return a trainer of LoRA adapters on a small random Llama."""
    set_seed(0)
    plain = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    given = options.pop("given", {})
    defaults = {"max_steps": 4, "learning_rate": 0.01, "max_grad_norm": 0.1, "gradient_accumulation_steps": 2}
    quiet = {"use_cpu": True, "bf16": False, "report_to": "none", "disable_tqdm": True, "dataloader_pin_memory": False}
    return kind(
        LlamaForCausalLM(LlamaConfig(vocab_size=len(WORDS), initializer_range=0.2, **sizes)),
        args=config(str(folder), optim="sgd", **defaults | given | quiet),
        processing_class=PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="<pad>", eos_token="</s>"),
        peft_config=LoraConfig(target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
        **options,
    )


def close(found: Any, expected: Any) -> None:
    """Two passes may round differently where one does once. AdamW is left out, as it magnifies what is nearly zero."""
    agree(found.model, expected.model, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("rule", [pg.Mean, pg.UPGrad])
def test_preferences(rule: type, tmp_path: Path) -> None:
    """UPGrad of two equal gradients is that gradient, too."""
    example = runpy.run_path(str(EXAMPLES / "trl_preferences.py"))
    pairs = [("please yes please", "no"), ("no please no", "yes yes"), ("yes please", "no"), ("no no no", "yes please")]
    rows = [{"prompt": "answer ", "chosen": a, "rejected": b, "swap": False} for a, b in pairs * 8]
    data = {"train_dataset": Dataset.from_list(rows), "given": {"remove_unused_columns": False}}
    expected = trainer(DPOTrainer, DPOConfig, tmp_path, **data)
    expected.train()
    collator = example["Collator"](pad_token_id=0)
    found = trainer(example["TwoAnnotators"], DPOConfig, tmp_path, rule=rule(), data_collator=collator, **data)
    start = {name: param.clone() for name, param in found.model.named_parameters()}
    found.train()
    close(found, expected)
    assert any(not torch.equal(start[name], param) for name, param in found.model.named_parameters())


def polite(completions: list[str], **_: Any) -> list[float]:
    return [float(text.split().count("please")) for text in completions]


def also_polite(completions: list[str], **_: Any) -> list[float]:
    return polite(completions)


def test_rewards(tmp_path: Path) -> None:
    batch = {"num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 4}
    data = {"train_dataset": Dataset.from_list([{"prompt": "answer"}] * 32), "given": batch}
    expected = trainer(GRPOTrainer, GRPOConfig, tmp_path, reward_funcs=[polite], **data)
    expected.train()
    kind = runpy.run_path(str(EXAMPLES / "trl_rewards.py"))["SeveralRewards"]
    found = trainer(kind, GRPOConfig, tmp_path, reward_funcs=[polite, also_polite], rule=pg.Mean(), **data)
    found.train()
    assert found.step.names == ("polite", "also_polite")
    close(found, expected)
