"""BERT: an encoder that sees both sides of every token, with heads for masked tokens and for classes.

Names, arguments and state dicts are those of Hugging Face's `BertModel`, `BertForMaskedLM` and
`BertForSequenceClassification`. See: Devlin et al. 2019.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from stratal import nn
from stratal.base.errors import ShapeError
from stratal.models.language.decoder import checked_tokens, split_heads
from stratal.models.language.pretrained import Pretrained, share_weight
from stratal.nn.depth import repeated
from stratal.nn.parameter import empty_parameter
from stratal.tensor.api.explained import explain_methods
from stratal.tensor.functions.creation import arange, zeros_like
from stratal.tensor.functions.elementwise import cast
from stratal.tensor.tensor import Tensor

F = nn.functional


@dataclass(frozen=True)
class BertConfig:
    """Sizes of a BERT, with Hugging Face's names; the defaults are the base model."""

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    pad_token_id: int | None = 0
    tie_word_embeddings: bool = True
    num_labels: int = 2

    ONLY: ClassVar[dict[str, tuple[Any, ...]]] = {
        "hidden_act": ("gelu",),
        "position_embedding_type": ("absolute",),
        "is_decoder": (False,),
        "add_cross_attention": (False,),
    }


explain_methods(BertConfig, "__init__")


class EncoderOutput(NamedTuple):
    """Vectors of all tokens [N, L, hidden_size], and of the first ones, transformed [N, hidden_size]."""

    last_hidden_state: Tensor
    pooler_output: Tensor | None


class HeadOutput(NamedTuple):
    """The mean loss where labels are given, and logits."""

    loss: Tensor | None
    logits: Tensor


class _Embeddings(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        d = config.hidden_size
        self.word_embeddings = nn.Embedding(config.vocab_size, d, config.pad_token_id)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, d)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, d)
        self.LayerNorm = nn.LayerNorm(d, config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, ids: Tensor, kinds: Tensor, positions: Tensor) -> Tensor:
        x = (
            self.word_embeddings(ids)
            + self.token_type_embeddings(kinds)
            + self.position_embeddings(positions)
        )
        return self.dropout(self.LayerNorm(x))


class _SelfAttention(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        d = config.hidden_size
        self.num_heads, self.dropout = config.num_attention_heads, config.attention_probs_dropout_prob
        self.query, self.key, self.value = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x: Tensor, visible: Tensor | None) -> Tensor:
        q, k, v = (split_heads(project(x), self.num_heads) for project in (self.query, self.key, self.value))
        dropped = self.dropout if self.training else 0.0
        out = F.scaled_dot_product_attention(q, k, v, visible, dropped)
        return out.permute(0, 2, 1, 3).reshape(x.shape)


class _Joined(nn.Module):
    """A linear layer whose result is added to what came before, then normalised."""

    def __init__(self, inner: int, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(inner, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, x: Tensor, before: Tensor) -> Tensor:
        return self.LayerNorm(self.dropout(self.dense(x)) + before)


class _Attention(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.self = _SelfAttention(config)
        self.output = _Joined(config.hidden_size, config)

    def forward(self, x: Tensor, visible: Tensor | None) -> Tensor:
        return self.output(self.self(x, visible), x)


class _Layer(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.attention = _Attention(config)
        widened = nn.Linear(config.hidden_size, config.intermediate_size)
        self.intermediate = nn.Sequential({"dense": widened, "intermediate_act_fn": nn.GELU()})
        self.output = _Joined(config.intermediate_size, config)

    def forward(self, x: Tensor, visible: Tensor | None) -> Tensor:
        x = self.attention(x, visible)
        return self.output(self.intermediate(x), x)


class _Encoder(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.layer = nn.ModuleList(repeated("BERT", config.num_hidden_layers, lambda _: _Layer(config)))

    def forward(self, x: Tensor, visible: Tensor | None) -> Tensor:
        for layer in self.layer:
            x = layer(x, visible)
        return x


class BertModel(Pretrained):
    """The encoder. `attention_mask` [N, L] says which tokens count, `token_type_ids` to which text each
    belongs.

    Shapes: input_ids [N, L] -> EncoderOutput.
    """

    config_class = BertConfig

    def __init__(self, config: BertConfig, add_pooling_layer: bool = True) -> None:
        super().__init__()
        self.config = config
        self.embeddings, self.encoder = _Embeddings(config), _Encoder(config)
        self.pooler = None
        if add_pooling_layer:
            dense = nn.Linear(config.hidden_size, config.hidden_size)
            self.pooler = nn.Sequential({"dense": dense, "activation": nn.Tanh()})
        _draw(self, config)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> EncoderOutput:
        most = self.config.max_position_embeddings if position_ids is None else None
        n, length = checked_tokens("Bert", input_ids, most).shape
        kinds = zeros_like(input_ids) if token_type_ids is None else token_type_ids
        positions = arange(length).reshape((1, length)) if position_ids is None else position_ids
        x = self.embeddings(input_ids, kinds, positions)
        x = self.encoder(x, None if attention_mask is None else _visible(attention_mask, n, length))
        return EncoderOutput(x, None if self.pooler is None else self.pooler(x[:, 0]))


def _visible(attention_mask: Tensor, n: Any, length: Any) -> Tensor:
    """Return which keys count, bool [N, 1, 1, L]; all of a text in which none does, or attention would be
    NaN.
    """
    if tuple(attention_mask.shape) != (n, length):
        raise ShapeError(
            "Bert: attention_mask says for each token whether it counts",
            got=f"shape {list(attention_mask.shape)} for {[n, length]}",
        )
    counts = cast(attention_mask, "bool")
    return (counts | ~counts.any(axis=1, keepdims=True)).reshape((n, 1, 1, length))


def _draw(model: nn.Module, config: BertConfig) -> None:
    """Draw weights from N(0, initializer_range); biases are 0, and so is the vector of padding."""
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=config.initializer_range)
            if name.endswith("word_embeddings.weight") and config.pad_token_id is not None:
                nn.init.zero_row_(parameter, config.pad_token_id)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)


class _Transform(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        return self.LayerNorm(F.gelu(self.dense(x)))


class _Predictions(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.bias = empty_parameter((config.vocab_size,))
        self.transform = _Transform(config)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        share_weight(self, "decoder.bias", "bias")

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.transform(x))


class _WithHead(Pretrained):
    """BERT, `bert`, with logits made of what it gives."""

    config_class = BertConfig

    def _logits(self, output: EncoderOutput) -> Tensor:
        raise NotImplementedError

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None, labels: Tensor | None = None
    ) -> HeadOutput:
        logits = self._logits(self.bert(input_ids, attention_mask, token_type_ids, position_ids))
        if labels is None:
            return HeadOutput(None, logits)
        if logits.ndim == 2:
            return HeadOutput(F.cross_entropy(logits, labels), logits)
        rows = logits.reshape((-1, logits.shape[-1]))
        return HeadOutput(F.cross_entropy(rows, labels.reshape((-1,))), logits)


class BertForMaskedLM(_WithHead):
    """BERT with logits for the token at every place; labels of -100 do not count. Returns: HeadOutput."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.bert = BertModel(config, add_pooling_layer=False)
        self.cls = nn.Sequential({"predictions": _Predictions(config)})
        _draw(self, config)
        if config.tie_word_embeddings:
            share_weight(self, "cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight")

    def _logits(self, output: EncoderOutput) -> Tensor:
        return self.cls(output.last_hidden_state)


class BertForSequenceClassification(_WithHead):
    """BERT with logits for the classes of whole texts [N, num_labels]. Returns: HeadOutput."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.bert = BertModel(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        _draw(self, config)

    def _logits(self, output: EncoderOutput) -> Tensor:
        return self.classifier(self.dropout(output.pooler_output))
