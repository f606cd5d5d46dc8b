"""The models that the engine benchmark measures, by device, with those of the transformers library.

The latter have random weights, no dropout and batches without padding. Their attention is transformers' own call of
`scaled_dot_product_attention`, registered under a name for which transformers builds no mask: otherwise it builds one
during the capture of a CUDA graph, and only then, which selects other kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from engine_models import Problem, mlp, resnet, transformer, with_heads
from torch import Tensor, nn
from torch.nn import functional

#: Losses of the models from transformers.
LOSSES = 4

ATTENTION = "sdpa_without_mask"


@dataclass(frozen=True)
class Case:
    """One model of the benchmark.

    Attributes:
        name: as in the summary.
        detail: sizes, for the title of its table.
        build: return the problem in float32; it may import optional packages.
        exact: compute the exact direction in float64; False if the model is too large for it.
        untuned: on the CPU, measure the memory also with the allocator's default settings.
    """

    name: str
    detail: str
    build: Callable[[], Problem]
    exact: bool = True
    untuned: bool = False


class Pooled(nn.Module):
    """Return the pooled features of an encoder."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, inputs: Tensor) -> Tensor:
        return self.encoder(inputs).pooler_output


class LanguageModel(nn.Module):
    """A language model without heads of the losses; the losses are those of the next token."""

    def __init__(self, trunk: nn.Module) -> None:
        super().__init__()
        self.trunk, self.heads = trunk, nn.ModuleList()

    @staticmethod
    def token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


class Domains(LanguageModel):
    """Each loss has its own batch and forward pass."""

    def forward(self, *batches: Tensor) -> tuple[list[Tensor], None]:
        return [self.token_loss(self.trunk(tokens).logits, tokens) for tokens in batches], None


class Groups(LanguageModel):
    """Each loss is that of one group of the batch; they share one forward pass."""

    def forward(self, tokens: Tensor) -> tuple[list[Tensor], None]:
        groups = zip(self.trunk(tokens).logits.chunk(LOSSES), tokens.chunk(LOSSES), strict=True)
        return [self.token_loss(logits, own) for logits, own in groups], None


def from_config(name: str, device: str, **config: Any) -> nn.Module:
    """Return the model of this name in transformers, such as ``Bert``, with random weights drawn on the device."""
    import transformers
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    transformers.logging.set_verbosity_error()
    transformers.AttentionInterface.register(ATTENTION, sdpa_attention_forward)
    kind = {"Bert": "Model", "ViT": "Model", "GPT2": "LMHeadModel", "Llama": "ForCausalLM"}[name]
    settings = getattr(transformers, f"{name}Config")(attn_implementation=ATTENTION, **config)
    torch.manual_seed(0)
    with torch.device(device):
        return getattr(transformers, name + kind)(settings).train()


def tokens(vocabulary: int, batch: int, length: int, device: str) -> Tensor:
    return torch.randint(vocabulary, (batch, length)).to(device)


def bert(device: str, batch: int, length: int, **config: Any) -> Problem:
    encoder = from_config("Bert", device, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **config)
    inputs = tokens(encoder.config.vocab_size, batch, length, device)
    return with_heads(Pooled(encoder), encoder.config.hidden_size, inputs, device, LOSSES)


def vit(device: str, batch: int, **config: Any) -> Problem:
    encoder = from_config("ViT", device, **config)
    pixels = encoder.config.image_size
    return with_heads(
        Pooled(encoder), encoder.config.hidden_size, torch.randn(batch, 3, pixels, pixels), device, LOSSES
    )


def gpt2(device: str, batch: int, length: int, **config: Any) -> Problem:
    """Return GPT-2, whose output layer shares its weights with the embedding, with one batch for each loss."""
    model = from_config("GPT2", device, use_cache=False, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **config)
    return Problem(Domains(model), tuple(tokens(model.config.vocab_size, batch, length, device) for _ in range(LOSSES)))


def llama(device: str, batch: int, length: int, **config: Any) -> Problem:
    """Return a frozen Llama with LoRA (Hu et al., 2022) of rank 16 on every projection.

    Both factors are random: with the usual zeros in the second one, the gradient of the first one vanishes.
    """
    from peft import LoraConfig, get_peft_model

    model = from_config("Llama", device, use_cache=False, **config)
    projections = [f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")]
    trunk = get_peft_model(model, LoraConfig(r=16, target_modules=projections, init_lora_weights=False))
    return Problem(Groups(trunk), (tokens(model.config.vocab_size, batch, length, device),))


#: Sizes of small models for the CPU.
SMALL = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}

#: Sizes of the Llama with 1.1 billion parameters.
LLAMA_1B = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "vocab_size": 32_000,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}

#: By device and name.
CASES: dict[str, dict[str, Case]] = {
    "cpu": {
        "mlp": Case("MLP", "512 to 4 x 1,024, batch 64", lambda: mlp(1024, 64, "cpu"), untuned=True),
        "resnet": Case("ResNet-18", "BatchNorm in eval mode, 8 images of 32 x 32", lambda: resnet(8, 32, "cpu")),
        "bert": Case("BERT", "2 layers of width 128, 8 x 64 tokens", lambda: bert("cpu", 8, 64, **SMALL)),
        "vit": Case(
            "ViT",
            "2 layers of width 128, 8 images of 64 x 64 in patches of 8 x 8",
            lambda: vit("cpu", 8, image_size=64, patch_size=8, **SMALL),
        ),
        "gpt2": Case(
            "GPT-2",
            "2 layers of width 128, four domains of 2 x 64 tokens",
            lambda: gpt2("cpu", 2, 64, n_embd=128, n_layer=2, n_head=2),
        ),
    },
    "cuda": {
        "mlp": Case("MLP", "512 to 4 x 2,048, batch 256", lambda: mlp(2048, 256, "cuda")),
        "transformer": Case(
            "Transformer encoder",
            "6 layers of width 512 with 8 heads, 32 x 64 tokens",
            lambda: transformer(512, 6, 32, 64, "cuda"),
        ),
        "resnet": Case("ResNet-18", "BatchNorm in eval mode, 64 images of 64 x 64", lambda: resnet(64, 64, "cuda")),
        "bert": Case("BERT-base", "32 x 128 tokens", lambda: bert("cuda", 32, 128)),
        "vit": Case("ViT-B/16", "32 images of 224 x 224", lambda: vit("cuda", 32)),
        "gpt2": Case("GPT-2 small", "four domains of 8 x 128 tokens", lambda: gpt2("cuda", 8, 128)),
        "llama": Case(
            "Llama 1B with LoRA",
            "rank 16, 8 x 128 tokens in four groups",
            lambda: llama("cuda", 8, 128, **LLAMA_1B),
            exact=False,
        ),
    },
}
