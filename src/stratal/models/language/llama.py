"""Llama: a decoder with rotary positions, RMS norms, gated perceptrons and groups of query heads per key.

Names, arguments and state dicts are those of Hugging Face's `LlamaForCausalLM`. See: Touvron et al. 2023;
for groups Ainslie et al. 2023, for rotations Su et al. 2021, for SwiGLU Shazeer 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from stratal import nn
from stratal.base.errors import AttributeValueError
from stratal.models.language.decoder import (
    attend,
    checked_tokens,
    past_length,
    run_layers,
    split_heads,
    visible_keys,
)
from stratal.models.language.generation import Generates
from stratal.nn.depth import repeated
from stratal.tensor.api.explained import explain_methods
from stratal.tensor.functions.creation import arange
from stratal.tensor.functions.shapes import stack
from stratal.tensor.tensor import Tensor

F = nn.functional


@dataclass(frozen=True)
class LlamaConfig:
    """Sizes of a Llama, with Hugging Face's names; the defaults are the first one of 7 billion parameters."""

    vocab_size: int = 32000
    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int | None = None  # as many as there are query heads
    head_dim: int | None = None  # hidden_size / num_attention_heads
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    attention_bias: bool = False
    attention_dropout: float = 0.0
    mlp_bias: bool = False
    initializer_range: float = 0.02
    tie_word_embeddings: bool = False

    ONLY: ClassVar[dict[str, tuple[Any, ...]]] = {
        "hidden_act": ("silu",),
        "rope_scaling": (None,),
        "rope_type": ("default",),
    }

    def __post_init__(self) -> None:
        if self.num_attention_heads % self.key_value_heads:
            raise AttributeValueError(
                "LlamaConfig: num_key_value_heads divides num_attention_heads",
                got=f"{self.num_key_value_heads} for {self.num_attention_heads}",
            )

    @property
    def key_value_heads(self) -> int:
        """How many heads keys and values have."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def head_width(self) -> int:
        """The features of a head."""
        return self.head_dim or self.hidden_size // self.num_attention_heads


explain_methods(LlamaConfig, "__init__")


class _Attention(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        d, bias, width = config.hidden_size, config.attention_bias, config.head_width
        self.q_proj = nn.Linear(d, config.num_attention_heads * width, bias)
        self.k_proj = nn.Linear(d, config.key_value_heads * width, bias)
        self.v_proj = nn.Linear(d, config.key_value_heads * width, bias)
        self.o_proj = nn.Linear(config.num_attention_heads * width, d, bias)

    def forward(
        self, x: Tensor, positions: Tensor, visible: Tensor | None, past: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        c = self.config
        q = split_heads(self.q_proj(x), c.num_attention_heads)
        k, v = (split_heads(project(x), c.key_value_heads) for project in (self.k_proj, self.v_proj))
        q, k = (F.rotary_embedding(y, positions, base=c.rope_theta, interleaved=False) for y in (q, k))
        out = attend(q, k, v, past, visible, c.attention_dropout if self.training else 0.0)
        return self.o_proj(out), stack([k, v])


class _MLP(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        d, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_proj, self.up_proj = nn.Linear(d, inner, bias), nn.Linear(d, inner, bias)
        self.down_proj = nn.Linear(inner, d, bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class _Layer(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.self_attn, self.mlp = _Attention(config), _MLP(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self, x: Tensor, positions: Tensor, visible: Tensor | None, past: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        change, keys_values = self.self_attn(self.input_layernorm(x), positions, visible, past)
        x = x + change
        return x + self.mlp(self.post_attention_layernorm(x)), keys_values


class LlamaModel(nn.Module):
    """The decoder without its head. Shapes: input_ids [N, L] -> [N, L, hidden_size], and keys and values."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(repeated("Llama", config.num_hidden_layers, lambda _: _Layer(config)))
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=config.initializer_range)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        earlier, length = past_length(past), checked_tokens("Llama", input_ids).shape[1]
        visible = visible_keys("Llama", length, earlier, attention_mask)
        positions = arange(length).reshape((1, -1)) + earlier if position_ids is None else position_ids
        positions = positions.reshape((positions.shape[0], 1, length))  # the same for all heads
        x, keys_values = run_layers(self.layers, self.embed_tokens(input_ids), past, positions, visible)
        return self.norm(x), keys_values


class LlamaForCausalLM(Generates):
    """Llama with logits for the next token at every place; arguments and result are those of `Generates`."""

    config_class, decoder_name = LlamaConfig, "model"

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.model = LlamaModel(config)
        self._add_head(config, config.hidden_size, "model.embed_tokens.weight")

    @property
    def max_length(self) -> int:
        return self.config.max_position_embeddings
