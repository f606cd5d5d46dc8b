"""Language models: encoders, decoders, mixtures of experts, adapters, and sequence to sequence."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from peft import LoraConfig, get_peft_model
from support.models import Losses, Problem, all_params
from torch import Tensor
from torch.nn import functional
from transformers import (
    BertConfig,
    BertForPreTraining,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from .table import InFloat64, architecture

WORDS = 40


def tokens(batch: int = 3, length: int = 7) -> Tensor:
    return torch.randint(1, WORDS, (batch, length))


def next_token(logits: Tensor, ids: Tensor) -> list[Tensor]:
    """Return the mean cross-entropy of the next token of each text: each is a domain."""
    losses = functional.cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")
    return list(losses.mean(dim=1))


def pretraining(logits: Tensor, ids: Tensor) -> dict[str, Tensor]:
    """Return cross-entropy, the penalty on log-partition functions, and an entropy bonus."""
    return {
        "next token": torch.stack(next_token(logits, ids)).mean(),
        "z": logits.logsumexp(dim=-1).square().mean(),
        "entropy": (logits.softmax(dim=-1) * logits.log_softmax(dim=-1)).sum(dim=-1).mean(),
    }


@architecture
def bert() -> Problem:
    """Masked words, with an output layer that is tied to the embeddings, and a pooled head; with dropout."""
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=16,
        max_position_embeddings=8,
    )
    net, ids, follows = BertForPreTraining(config).train(), tokens(), torch.tensor([0, 1, 1])
    mask = torch.ones_like(ids)
    mask[0, 5:] = 0

    def losses() -> Losses:
        out = net(input_ids=ids, attention_mask=mask)
        words = out.prediction_logits
        return [
            functional.cross_entropy(words[:, 1::2].flatten(0, 1), ids[:, 1::2].flatten()),
            functional.cross_entropy(out.seq_relationship_logits, follows),
            words[:, ::2].square().mean(),
        ]

    return Problem(all_params(net), losses)


def small_gpt2() -> GPT2LMHeadModel:
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=WORDS, n_positions=8, n_embd=12, n_layer=2, n_head=3, bos_token_id=0, eos_token_id=0)
    ).eval()


@architecture
def gpt2() -> Problem:
    """Tied weights: the embedding is also the output layer. Three texts in one batch are three losses."""
    net, ids = small_gpt2(), tokens()
    return Problem(all_params(net), lambda: next_token(net(input_ids=ids).logits, ids))


@architecture
def gpt2_with_a_batch_per_domain() -> Problem:
    """A forward pass per loss: no activation is shared, only the parameters."""
    net, domains = small_gpt2(), [tokens(2, length) for length in (5, 6, 7)]

    def losses() -> Losses:
        return {
            f"domain {k}": torch.stack(next_token(net(input_ids=ids).logits, ids)).mean()
            for k, ids in enumerate(domains)
        }

    return Problem(all_params(net), losses)


@architecture
def t5() -> Problem:
    """Encoder and decoder with one embedding, and relative positions that all layers share."""
    config = T5Config(
        vocab_size=WORDS,
        d_model=12,
        d_kv=4,
        d_ff=16,
        num_layers=2,
        num_heads=3,
        decoder_start_token_id=0,
        feed_forward_proj="gated-gelu",
    )
    net, ids, labels = T5ForConditionalGeneration(config).eval(), tokens(), tokens(3, 5)
    return Problem(all_params(net), lambda: next_token(net(input_ids=ids, labels=labels).logits, labels))


def small_llama() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=16,
        intermediate_size=20,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=8,
    )
    return LlamaForCausalLM(config)


@architecture
def llama() -> Problem:
    """Rotary positions, grouped queries, gated layers without biases."""
    net, ids = small_llama().eval(), tokens()
    return Problem(all_params(net), lambda: pretraining(net(input_ids=ids).logits, ids))


@architecture
def llama_with_lora_and_checkpoints() -> Problem:
    """Adapters with dropout in a frozen model. Each layer's forward pass is repeated in each backward pass, for which
    the output of the frozen embedding requires a gradient: a leaf that is no parameter.
    """
    adapters = LoraConfig(r=2, lora_dropout=0.1, target_modules=["q_proj", "v_proj", "down_proj"])
    net = get_peft_model(small_llama(), adapters)

    def contexts() -> tuple[AbstractContextManager[object], AbstractContextManager[object]]:
        return nullcontext(), InFloat64()  # the repeated pass runs outside that of `architecture`

    net.enable_input_require_grads()
    net.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False, "context_fn": contexts})
    net.train()
    ids = tokens()
    return Problem(all_params(net), lambda: next_token(net(input_ids=ids, use_cache=False).logits, ids))


@architecture
def mixtral() -> Problem:
    """Each token goes to two of four experts; the router has a loss of its own."""
    config = MixtralConfig(
        vocab_size=WORDS,
        hidden_size=16,
        intermediate_size=12,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        max_position_embeddings=8,
        output_router_logits=True,
    )
    net, ids = MixtralForCausalLM(config).eval(), tokens()
    net.set_experts_implementation("eager")

    def losses() -> Losses:
        out = net(input_ids=ids, labels=ids)
        return {**pretraining(out.logits, ids), "balance": out.aux_loss}

    return Problem(all_params(net), losses)


@architecture
def mamba() -> Problem:
    """A state-space model: a loop over the tokens, and parameters that are no layer's weight."""
    config = MambaConfig(
        vocab_size=WORDS, hidden_size=8, state_size=4, num_hidden_layers=2, conv_kernel=3, time_step_rank=2
    )
    net, ids = MambaForCausalLM(config).train(), tokens()
    return Problem(all_params(net), lambda: next_token(net(input_ids=ids).logits, ids))
