"""Models of speech, and of images that are generated."""

from __future__ import annotations

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel, UNet2DModel
from support.models import Losses, Problem, all_params
from torch import Tensor, nn
from torch.nn import functional
from transformers import Wav2Vec2Config, Wav2Vec2ForPreTraining, WhisperConfig, WhisperForConditionalGeneration

from .table import architecture


@architecture
def whisper() -> Problem:
    """Speech to text: a convolutional encoder, a decoder tied to its embedding, and a loss per speaker."""
    config = WhisperConfig(
        vocab_size=30,
        num_mel_bins=6,
        d_model=12,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=3,
        decoder_attention_heads=3,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        max_source_positions=10,
        max_target_positions=8,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    net = WhisperForConditionalGeneration(config).eval()
    speech, words = torch.randn(3, 6, 20), torch.randint(3, 30, (3, 6))

    def losses() -> Losses:
        logits = net(input_features=speech, labels=words).logits
        return list(functional.cross_entropy(logits.transpose(1, 2), words, reduction="none").mean(dim=1))

    return Problem(all_params(net), losses)


@architecture
def wav2vec2() -> Problem:
    """Speech without labels, in training mode: the waveform requires a gradient there, and is no parameter. Codes
    are drawn at random.
    """
    config = Wav2Vec2Config(
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=16,
        conv_dim=[6, 6],
        conv_kernel=[5, 3],
        conv_stride=[4, 2],
        num_feat_extract_layers=2,
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
        num_codevectors_per_group=4,
        codevector_dim=8,
        proj_codevector_dim=8,
        num_negatives=3,
        layerdrop=0.0,
    )
    net = Wav2Vec2ForPreTraining(config).double().train()  # its codes are float32 in every case
    waves = torch.randn(2, 80)
    masked = torch.zeros(2, 9, dtype=torch.bool)
    masked[:, 2:6] = True
    others = (torch.arange(9)[:, None] + torch.arange(1, 4)) % 9
    negatives = torch.stack([others, others + 9])

    def losses() -> Losses:
        out = net(input_values=waves.clone(), mask_time_indices=masked, sampled_negative_indices=negatives)
        agreement = torch.cosine_similarity(out.projected_states, out.projected_quantized_states, dim=-1)
        return {"contrast": out.contrastive_loss, "diversity": out.diversity_loss, "agreement": -agreement.mean()}

    return Problem(all_params(net), losses)


def denoising(net: nn.Module, *inputs: Tensor) -> Problem:
    """Return the losses of a network that predicts the noise, one for each of three levels."""
    images, noise, times = torch.randn(3, 2, 8, 8), torch.randn(3, 2, 8, 8), torch.tensor([10, 300, 900])
    level = (1e-3 * times)[:, None, None, None]
    noisy = (1.0 - level).sqrt() * images + level.sqrt() * noise

    def losses() -> Losses:
        return list((net(noisy, times, *inputs).sample - noise).square().mean(dim=(1, 2, 3)))

    return Problem(all_params(net), losses)


@architecture
def unet() -> Problem:
    """Residual blocks, attention, and connections from each level of the encoder to that of the decoder."""
    net = UNet2DModel(
        sample_size=8,
        in_channels=2,
        out_channels=2,
        layers_per_block=1,
        block_out_channels=(4, 8),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=2,
        attention_head_dim=4,
    )
    return denoising(net)


@architecture
def unet_with_a_text() -> Problem:
    """The network of latent diffusion: attention to a text, in transformer blocks between the residual ones."""
    net = UNet2DConditionModel(
        sample_size=8,
        in_channels=2,
        out_channels=2,
        layers_per_block=1,
        block_out_channels=(4, 8),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=2,
        attention_head_dim=4,
        cross_attention_dim=6,
    )
    return denoising(net, torch.randn(3, 5, 6))


@architecture
def autoencoder() -> Problem:
    """The variational autoencoder of latent diffusion: pixels, edges, and the divergence of the code."""
    net = AutoencoderKL(
        in_channels=2,
        out_channels=2,
        down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"),
        up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"),
        block_out_channels=(4, 8),
        layers_per_block=1,
        latent_channels=2,
        norm_num_groups=2,
        sample_size=8,
    )
    images, noise = torch.randn(2, 2, 8, 8), torch.randn(2, 2, 4, 4)

    def losses() -> Losses:
        code = net.encode(images).latent_dist
        made = net.decode(code.mean + code.std * noise).sample
        return {
            "pixels": functional.l1_loss(made, images),
            "edges": functional.mse_loss(made.diff(dim=-1), images.diff(dim=-1)),
            "divergence": code.kl().mean(),
        }

    return Problem(all_params(net), losses)
