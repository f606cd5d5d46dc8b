"""Models of images: classifiers, a contrastive pair of encoders, and detection."""

from __future__ import annotations

from typing import Any

import torch
from support.models import Losses, Problem, all_params
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    CLIPConfig,
    CLIPModel,
    ConvNextConfig,
    ConvNextModel,
    DeformableDetrConfig,
    DeformableDetrForObjectDetection,
    DetrConfig,
    DetrForObjectDetection,
    ResNetConfig,
    SwinConfig,
    SwinModel,
    ViTConfig,
    ViTModel,
    YolosConfig,
    YolosForObjectDetection,
)

from .table import architecture


def tasks(trunk: nn.Module, width: int, images: Tensor) -> Problem:
    """Return a classification, a regression and a ranking task, each with a head on the pooled output."""
    heads = nn.ModuleList(nn.Linear(width, size) for size in (5, 2, 1))
    labels, targets = torch.randint(5, (len(images),)), torch.randn(len(images), 2)

    def losses() -> Losses:
        z = trunk(pixel_values=images).pooler_output
        logits, values, score = (head(z) for head in heads)
        return {
            "class": functional.cross_entropy(logits, labels),
            "value": functional.mse_loss(values, targets),
            "rank": functional.softplus(score[:-1] - score[1:]).mean(),
        }

    return Problem(all_params(trunk, heads), losses)


@architecture
def vit() -> Problem:
    config = ViTConfig(
        hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=16, image_size=8, patch_size=4
    )
    return tasks(ViTModel(config).eval(), 12, torch.randn(3, 3, 8, 8))


@architecture
def swin() -> Problem:
    """Windows of attention, shifted by `roll` in every other layer, with a table of relative positions."""
    config = SwinConfig(
        image_size=16, patch_size=2, embed_dim=6, depths=[2, 2], num_heads=[2, 3], window_size=2, drop_path_rate=0.0
    )
    return tasks(SwinModel(config).eval(), 12, torch.randn(3, 3, 16, 16))


@architecture
def convnext() -> Problem:
    """Depthwise convolutions, norms of channels, and a learned scale of each branch."""
    config = ConvNextConfig(hidden_sizes=[6, 8], depths=[2, 1], num_stages=2, layer_scale_init_value=0.5)
    return tasks(ConvNextModel(config), 8, torch.randn(3, 3, 16, 16))


@architecture
def clip() -> Problem:
    """Contrastive: each loss compares every image with every text, at a learned temperature."""
    encoder = {"hidden_size": 12, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 3}
    config = CLIPConfig(
        text_config={**encoder, "vocab_size": 20, "max_position_embeddings": 6, "bos_token_id": 0, "eos_token_id": 19},
        vision_config={**encoder, "image_size": 8, "patch_size": 4},
        projection_dim=8,
    )
    net, images, ids = CLIPModel(config).eval(), torch.randn(4, 3, 8, 8), torch.randint(1, 18, (4, 6))
    ids[:, -1] = 19

    def losses() -> Losses:
        out = net(input_ids=ids, pixel_values=images)
        pairs = torch.arange(4)
        return [
            functional.cross_entropy(out.logits_per_image, pairs),
            functional.cross_entropy(out.logits_per_text, pairs),
            (out.text_embeds - out.image_embeds).square().sum(dim=1).mean(),
        ]

    return Problem(all_params(net), losses)


def detection(net: nn.Module, **inputs: Tensor) -> Problem:
    """Return the dictionary of losses of a set of boxes, as the model reports it, without the count of its errors."""
    labels: list[dict[str, Any]] = [
        {"class_labels": torch.randint(3, (n,)), "boxes": 0.2 + 0.6 * torch.rand(n, 4)} for n in (2, 1)
    ]

    def losses() -> Losses:
        found = net(**inputs, labels=labels).loss_dict
        return {name: loss for name, loss in found.items() if loss.requires_grad}

    return Problem(all_params(net), losses)


@architecture
def yolos() -> Problem:
    """Detection by a plain transformer: three losses of the boxes that are matched by the Hungarian method."""
    config = YolosConfig(
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=16,
        image_size=[16, 16],
        patch_size=8,
        num_detection_tokens=5,
        num_labels=3,
    )
    return detection(YolosForObjectDetection(config).eval(), pixel_values=torch.randn(2, 3, 16, 16))


TRUNK = {"embedding_size": 4, "hidden_sizes": [4, 6], "depths": [1, 1], "layer_type": "basic"}
DETECTOR = {
    "use_timm_backbone": False,
    "backbone": None,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "num_queries": 5,
    "num_labels": 3,
    "auxiliary_loss": True,
}


@architecture
def detr() -> Problem:
    """Detection by a convolutional trunk with frozen norms and a transformer, with the losses of each decoder layer."""
    config = DetrConfig(
        **DETECTOR,
        backbone_config=ResNetConfig(**TRUNK, out_features=["stage2"]),
        d_model=12,
        encoder_attention_heads=3,
        decoder_attention_heads=3,
    )
    return detection(DetrForObjectDetection(config).eval(), pixel_values=torch.randn(2, 3, 32, 32))


@architecture
def deformable_detr() -> Problem:
    """Attention that reads two levels of the trunk by interpolation, at places that the queries choose."""
    config = DeformableDetrConfig(
        **DETECTOR,
        backbone_config=ResNetConfig(**TRUNK, out_features=["stage1", "stage2"]),
        num_feature_levels=2,
        d_model=32,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
    )
    net = DeformableDetrForObjectDetection(config).eval()
    return detection(net, pixel_values=torch.randn(2, 3, 32, 32))
