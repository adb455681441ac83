"""Text token by token: one compiled program reads a prompt, another adds a token, over a cache of keys and
values.

A cache has memory for a fixed number of tokens and a mask that says which of them count, so the program that
adds a token is the same for all tokens. Prompts are padded in front to a multiple of 16 for the same reason.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from stratal import nn
from stratal.base.errors import AttributeValueError, ShapeError
from stratal.models.language.decoder import CausalOutput, next_token_loss
from stratal.models.language.pretrained import Pretrained, share_weight
from stratal.tensor.capture import compile
from stratal.tensor.functions.creation import zeros
from stratal.tensor.functions.elementwise import where
from stratal.tensor.functions.random import multinomial
from stratal.tensor.functions.sorting import topk
from stratal.tensor.tensor import Tensor, tensor
from stratal.tensor.values.state import no_grad

F = nn.functional

Array = np.ndarray[Any, Any]

_PROMPT = 16  # sizes of prompts are rounded up to multiples of it
_CAPACITY = 64  # and those of caches


class KeyValueCache:
    """Keys and values of the tokens so far, with room for `capacity` of them.

    `tensor` [layers, 2, N, heads, capacity, D] is written to through NumPy's view of its memory; `counts`
    [N, capacity] says which places a token may look at.
    """

    def __init__(self, first: Tensor, counts: Array, capacity: int) -> None:
        layers, two, n, heads, _, width = first.shape
        self.tensor = zeros((layers, two, n, heads, capacity, width), dtype=first.dtype)
        self._memory = np.asarray(self.tensor)
        self.counts = np.zeros((n, capacity), np.bool_)
        self.length = 0
        self.append(first, counts)

    def append(self, keys_values: Tensor, counts: Any = True) -> None:
        """Write the keys and values of new tokens behind the others."""
        end = self.length + int(keys_values.shape[4])
        self._memory[..., self.length : end, :] = np.asarray(keys_values)
        self.counts[:, self.length : end] = counts
        self.length = end


class Generates(Pretrained):
    """A decoder with a head, `lm_head`: logits for the next token at every place; it continues texts.

    `attention_mask` [N, P + L] says which earlier and new tokens count, `position_ids` where the new ones
    stand, `past` gives earlier keys and values. Logits are those of the last `logits_to_keep` tokens, 0 being
    all. Returns: CausalOutput.
    """

    decoder_name: ClassVar[str]  # of the part that gives hidden states, keys and values

    def _add_head(self, config: Any, width: int, table: str) -> None:
        """Add the projection to logits, whose weight is the table of tokens where the two are tied."""
        self.lm_head = nn.Linear(width, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            share_weight(self, "lm_head.weight", table)
        else:
            nn.init.normal_(self.lm_head.weight, std=config.initializer_range)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, position_ids: Tensor | None = None,
        past: Tensor | None = None, labels: Tensor | None = None, use_cache: bool = False,
        logits_to_keep: int = 0
    ) -> CausalOutput:
        decoder = getattr(self, self.decoder_name)
        hidden, keys_values = decoder(input_ids, attention_mask, position_ids, past)
        logits = self.lm_head(hidden[:, -logits_to_keep:] if logits_to_keep else hidden)
        return CausalOutput(next_token_loss(logits, labels), logits, keys_values if use_cache else None)

    @property
    def max_length(self) -> int | None:
        """How many tokens there are positions for, if that is limited."""
        return None

    @compile(dynamic=False)
    def _last_logits(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, past: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return logits [N, vocab] after the last token, and keys and values of the tokens."""
        _, logits, keys_values = self(
            input_ids, attention_mask, position_ids, past, use_cache=True, logits_to_keep=1
        )
        return logits[:, 0], keys_values

    def generate(
        self, input_ids: Any, attention_mask: Any = None, max_new_tokens: int = 20, do_sample: bool = False,
        temperature: float = 1.0, top_k: int | None = None, eos_token_id: int | None = None,
        pad_token_id: int | None = None
    ) -> Tensor:
        """Return the prompts [N, L] with up to `max_new_tokens` tokens behind each.

        Each is the likeliest one, or, with `do_sample`, drawn from softmax(logits / temperature), among the
        `top_k` likeliest. Prompts of different lengths are padded in front, with 0 there in `attention_mask`.
        Behind `eos_token_id` stands `pad_token_id` (unless given, the former); the result ends when all texts
        have. Dropout is off only in `eval()`.
        """
        prompt, counts = self._prompt(input_ids, attention_mask, max_new_tokens)
        for given in (eos_token_id, pad_token_id):
            if given is not None and not isinstance(given, (int, np.integer)):
                raise AttributeValueError("generate: a token is an int", got=repr(given))
        n, length = prompt.shape
        pick = _picker(do_sample, temperature, top_k)
        padding = -length % _PROMPT
        padded = np.pad(counts, ((0, 0), (padding, 0)))
        capacity = -(-(length + padding + max_new_tokens - 1) // _CAPACITY) * _CAPACITY
        places = counts.sum(1, keepdims=True)  # where the next token stands, as later ones count from here
        running = np.ones((n, 1), np.bool_)
        tokens = [prompt]
        with no_grad():
            ids, positions = np.pad(prompt, ((0, 0), (padding, 0))), np.maximum(padded.cumsum(1) - 1, 0)
            logits, keys_values = self._last_logits(*map(tensor, (ids, padded, positions)))
            cache = KeyValueCache(keys_values, padded, capacity)
            while True:
                token = pick(logits)
                if eos_token_id is not None:
                    token = np.where(running, token, eos_token_id if pad_token_id is None else pad_token_id)
                    running &= token != eos_token_id
                tokens.append(token)
                if len(tokens) > max_new_tokens or not running.any():
                    return tensor(np.concatenate(tokens, axis=1))
                seen = np.concatenate([cache.counts, np.ones((n, 1), np.bool_)], axis=1)
                logits, keys_values = self._last_logits(*map(tensor, (token, seen, places)), cache.tensor)
                cache.append(keys_values)
                places = places + 1

    def _prompt(self, input_ids: Any, attention_mask: Any, max_new_tokens: int) -> tuple[Array, Array]:
        """Return prompts and which of their tokens count. Raises: ShapeError, AttributeValueError."""
        ids = np.asarray(input_ids)
        if ids.ndim != 2 or ids.dtype.kind not in "iu" or 0 in ids.shape:
            raise ShapeError(
                "generate: takes integers [N, L] with at least one token", got=f"{ids.dtype}{list(ids.shape)}"
            )
        counts = np.ones(ids.shape, np.bool_) if attention_mask is None else np.asarray(attention_mask) != 0
        if counts.shape != ids.shape or not counts[:, -1].all():
            raise ShapeError(
                "generate: attention_mask has the prompts' shape, and the last token of each counts",
                got=f"shape {list(counts.shape)} for {list(ids.shape)}",
                hint="pad prompts of different lengths in front",
            )
        most = self.max_length
        if (
            not isinstance(max_new_tokens, int)
            or max_new_tokens < 1
            or (most is not None and ids.shape[1] + max_new_tokens > most)
        ):
            raise AttributeValueError(
                "generate: max_new_tokens is an int, at least 1, and there is a position for every token",
                got=f"{ids.shape[1]} and {max_new_tokens} new tokens, {most} positions",
            )
        return ids.astype(np.int64), counts


def _picker(do_sample: bool, temperature: float, top_k: int | None) -> Any:
    """Return what chooses the next token [N, 1] from logits [N, vocab]."""
    if not do_sample:
        return lambda logits: np.asarray(logits).argmax(axis=1, keepdims=True)
    if temperature <= 0 or (top_k is not None and top_k < 1):
        raise AttributeValueError(
            "generate: temperature is positive and top_k at least 1", got=f"{temperature}, {top_k}"
        )

    def draw(logits: Tensor) -> Array:
        if top_k is not None and top_k < logits.shape[1]:
            least = topk(logits, top_k)[0][:, -1:]
            logits = where(logits < least, -float("inf"), logits)
        return np.asarray(multinomial(F.softmax(logits / temperature, dim=-1), 1, replacement=True))

    return draw
