"""GPT-2: a decoder with learned positions, norms before its layers, and a head tied to the table of tokens.

Names, arguments and state dicts are those of Hugging Face's `GPT2LMHeadModel`. See: Radford et al. 2019.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from stratal import nn
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
from stratal.nn.parameter import empty_parameter
from stratal.tensor.api.explained import explain_methods
from stratal.tensor.functions.creation import arange
from stratal.tensor.functions.shapes import stack
from stratal.tensor.tensor import Tensor

F = nn.functional


@dataclass(frozen=True)
class GPT2Config:
    """Sizes of a GPT-2, with Hugging Face's names; the defaults are the model of 124 million parameters."""

    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: int = 12
    n_head: int = 12
    n_inner: int | None = None  # 4 * n_embd
    resid_pdrop: float = 0.1
    embd_pdrop: float = 0.1
    attn_pdrop: float = 0.1
    layer_norm_epsilon: float = 1e-5
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True

    ONLY: ClassVar[dict[str, tuple[Any, ...]]] = {
        "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
    }


explain_methods(GPT2Config, "__init__")


class Conv1D(nn.Module):
    """y = x @ weight + bias: a linear layer whose weight is stored [in, out]."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf, self.nx = nf, nx
        self.weight, self.bias = empty_parameter((nx, nf)), empty_parameter((nf,))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias

    def extra_repr(self) -> str:
        return f"nf={self.nf}, nx={self.nx}"


class _Attention(nn.Module):
    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.num_heads, self.dropout = config.n_head, config.attn_pdrop
        self.c_attn = Conv1D(3 * config.n_embd, config.n_embd)
        self.c_proj = Conv1D(config.n_embd, config.n_embd)
        self.resid_dropout = nn.Dropout(config.resid_pdrop)

    def forward(self, x: Tensor, visible: Tensor | None, past: Tensor | None) -> tuple[Tensor, Tensor]:
        width = int(x.shape[-1])
        joined = self.c_attn(x)
        q, k, v = (split_heads(joined[..., i * width : (i + 1) * width], self.num_heads) for i in range(3))
        out = attend(q, k, v, past, visible, self.dropout if self.training else 0.0)
        return self.resid_dropout(self.c_proj(out)), stack([k, v])


class _MLP(nn.Module):
    def __init__(self, inner: int, config: GPT2Config) -> None:
        super().__init__()
        self.c_fc, self.c_proj = Conv1D(inner, config.n_embd), Conv1D(config.n_embd, inner)
        self.dropout = nn.Dropout(config.resid_pdrop)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.c_proj(F.gelu(self.c_fc(x), approximate="tanh")))


class _Block(nn.Module):
    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, config.layer_norm_epsilon)
        self.attn = _Attention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd, config.layer_norm_epsilon)
        self.mlp = _MLP(config.n_inner or 4 * config.n_embd, config)

    def forward(self, x: Tensor, visible: Tensor | None, past: Tensor | None) -> tuple[Tensor, Tensor]:
        change, keys_values = self.attn(self.ln_1(x), visible, past)
        x = x + change
        return x + self.mlp(self.ln_2(x)), keys_values


class GPT2Model(nn.Module):
    """The decoder without its head. Shapes: input_ids [N, L] -> [N, L, n_embd], and keys and values."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.n_positions, config.n_embd)
        self.drop = nn.Dropout(config.embd_pdrop)
        self.h = nn.ModuleList(repeated("GPT-2", config.n_layer, lambda _: _Block(config)))
        self.ln_f = nn.LayerNorm(config.n_embd, config.layer_norm_epsilon)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights from N(0, initializer_range), those that end a residual branch narrower with depth."""
        std = self.config.initializer_range
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                narrower = math.sqrt(2 * self.config.n_layer) if name.endswith("c_proj.weight") else 1.0
                nn.init.normal_(parameter, std=std / narrower)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        earlier = past_length(past)
        most = self.config.n_positions if position_ids is None else None
        length = checked_tokens("GPT2", input_ids, most, earlier).shape[1]
        visible = visible_keys("GPT2", length, earlier, attention_mask)
        positions = arange(length) + earlier if position_ids is None else position_ids
        x = self.drop(self.wte(input_ids) + self.wpe(positions))
        x, keys_values = run_layers(self.h, x, past, visible)
        return self.ln_f(x), keys_values


class GPT2LMHeadModel(Generates):
    """GPT-2 with logits for the next token at every place; arguments and result are those of `Generates`."""

    config_class, decoder_name = GPT2Config, "transformer"

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.config = config
        self.transformer = GPT2Model(config)
        self.register_load_state_dict_pre_hook(_newer_names)
        self._add_head(config, config.n_embd, "transformer.wte.weight")

    @property
    def max_length(self) -> int:
        return self.config.n_positions


def _newer_names(module: nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    """Rename what the first files of GPT-2 hold: no head, and causal masks among the weights."""
    mine = [name for name in state if name.startswith(prefix)]
    for name in mine:
        if name.endswith((".attn.bias", ".attn.masked_bias")):
            del state[name]
        elif prefix + "wte.weight" in mine:
            state[f"{prefix}transformer.{name.removeprefix(prefix)}"] = state.pop(name)
