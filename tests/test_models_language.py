"""Models of texts, tiny: gradients against differences, 32 samples learnt by heart, caches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from model_checks import check_gradients, overfit

import stratal as st
from stratal import models, optim

VOCAB = 11
GPT2 = {"vocab_size": VOCAB, "n_positions": 64, "n_embd": 16, "n_layer": 1, "n_head": 2}
LLAMA = {
    "vocab_size": VOCAB, "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
BERT = {
    "vocab_size": VOCAB, "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 1,
    "num_attention_heads": 2, "max_position_embeddings": 64, "num_labels": 3, "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def gpt2(**others: Any) -> Any:
    return models.GPT2LMHeadModel(models.GPT2Config(**GPT2, **NO_DROPOUT, **others))


def llama(**others: Any) -> Any:
    return models.LlamaForCausalLM(models.LlamaConfig(**LLAMA, **others))


def texts(count: int, length: int = 7) -> Any:
    return np.random.default_rng(3).integers(1, VOCAB, (count, length))


def kinds(count: int) -> Any:
    return np.random.default_rng(4).integers(0, 3, count)


def padded(count: int, length: int = 7) -> Any:
    """Return masks of texts padded behind to different lengths."""
    return np.arange(length) < np.random.default_rng(5).integers(3, length + 1, (count, 1))


class Case(NamedTuple):
    build: Callable[[], Any]
    loss: Callable[..., Any]
    data: Callable[[int], tuple[Any, ...]]


CASES = {
    "gpt2": Case(gpt2, lambda m, ids: m(ids, labels=ids).loss, lambda n: (texts(n),)),
    "llama": Case(
        lambda: llama(attention_bias=True, tie_word_embeddings=True),
        lambda m, ids: m(ids, labels=ids).loss,
        lambda n: (texts(n),),
    ),
    "bert, masked tokens": Case(
        lambda: models.BertForMaskedLM(models.BertConfig(**BERT)),
        lambda m, ids, mask, labels: m(ids, mask, labels=labels).loss,
        lambda n: (np.where(texts(n) % 3 == 0, 10, texts(n)), padded(n), np.where(padded(n), texts(n), -100)),
    ),
    "bert, classes": Case(
        lambda: models.BertForSequenceClassification(models.BertConfig(**BERT)),
        lambda m, ids, mask, labels: m(ids, mask, labels=labels).loss,
        lambda n: (texts(n), padded(n), kinds(n)),
    ),
}
# Texts drawn at random start with a token nobody can foresee, so the least loss of a decoder is not 0.
LEAST = {"gpt2": 0.45, "llama": 0.45, "bert, masked tokens": 0.3, "bert, classes": 0.05}


@pytest.mark.row("A11")
@pytest.mark.parametrize("name", CASES)
def test_gradients_of_a_model_are_those_of_its_loss(name: str) -> None:
    st.manual_seed(0)
    case = CASES[name]
    check_gradients(case.build(), case.loss, *case.data(3))


@pytest.mark.row("A11")
@pytest.mark.parametrize("name", CASES)
def test_a_model_learns_32_samples_by_heart(name: str) -> None:
    st.manual_seed(0)
    case = CASES[name]
    model = case.build()
    optimizer = optim.Adam(model.parameters(), lr=1e-2)
    first, last = overfit(model, optimizer, case.loss, *case.data(32), steps=250)
    assert last < LEAST[name] < first


DECODERS = {"gpt2": gpt2, "llama": llama}


def spread(model: Any) -> Any:
    """Return a model in evaluation mode with weights wide enough for its logits to differ."""
    st.manual_seed(1)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            st.nn.init.normal_(parameter, std=0.5)
    return model.eval()


@pytest.mark.parametrize("name", DECODERS)
def test_earlier_keys_and_values_replace_earlier_tokens(name: str) -> None:
    model, ids = spread(DECODERS[name]()), texts(2, 9)
    whole = model(st.tensor(ids)).logits.detach()
    past = model(st.tensor(ids[:, :4]), use_cache=True).keys_values
    rest = model(st.tensor(ids[:, 4:]), past=past).logits.detach()
    np.testing.assert_allclose(rest, np.asarray(whole)[:, 4:], 1e-4, 1e-5)
    one = model(st.tensor(ids[:, 4:5]), past=past).logits.detach()
    np.testing.assert_allclose(one, np.asarray(whole)[:, 4:5], 1e-4, 1e-5)


@pytest.mark.parametrize("name", DECODERS)
def test_generation_with_a_cache_is_that_without_in_two_programs(name: str) -> None:
    model, prompts = spread(DECODERS[name]()), texts(2, 5)
    found = model.generate(prompts, max_new_tokens=40)
    ids = prompts
    run = st.compile(lambda ids: model(ids).logits.argmax(-1), dynamic=False)
    padding = np.zeros((2, 40), np.int64)
    for k in range(5, 45):  # tokens behind a place do not change what stands there
        following = np.asarray(run(st.tensor(np.concatenate([ids, padding[:, k - 5 :]], 1))))[:, k - 1 : k]
        ids = np.concatenate([ids, following], axis=1)
    np.testing.assert_array_equal(found, ids)
    assert model._last_logits.captures == 2
    np.testing.assert_array_equal(model.generate(prompts[:, :3], max_new_tokens=9)[:, :3], prompts[:, :3])
    assert model._last_logits.captures == 2  # another length, the same two


def test_padding_in_front_changes_nothing() -> None:
    model, prompt = spread(gpt2()), texts(1, 5)
    alone = np.asarray(model.generate(prompt, max_new_tokens=12))
    both = np.concatenate([np.pad(prompt, ((0, 0), (4, 0)), constant_values=3), texts(1, 9)])
    mask = np.ones((2, 9))
    mask[0, :4] = 0
    np.testing.assert_array_equal(np.asarray(model.generate(both, mask, max_new_tokens=12))[0, 4:], alone[0])


def test_texts_end_where_they_say_so() -> None:
    model, prompts = spread(gpt2()), texts(2, 5)
    free = np.asarray(model.generate(prompts, max_new_tokens=12))
    end = int(free[0, 8])
    first = [list(row[5:]).index(end) if end in row[5:] else 12 for row in free]
    found = np.asarray(model.generate(prompts, max_new_tokens=12, eos_token_id=end, pad_token_id=0))
    assert found.shape[1] == 5 + min(12, max(first) + 1)
    for row, wanted, k in zip(found, free, first, strict=True):
        np.testing.assert_array_equal(row[5 : 6 + k], wanted[5 : 6 + k])
        assert (row[6 + k :] == 0).all()


def test_drawn_tokens_follow_the_seed_the_temperature_and_the_likeliest() -> None:
    model, prompts = spread(gpt2()), texts(64, 2)

    def draw(**options: Any) -> Any:
        st.manual_seed(5)
        return np.asarray(model.generate(prompts, max_new_tokens=3, do_sample=True, **options))

    greedy = np.asarray(model.generate(prompts, max_new_tokens=3))
    np.testing.assert_array_equal(draw(), draw())
    np.testing.assert_array_equal(draw(top_k=1), greedy)
    np.testing.assert_array_equal(draw(temperature=1e-4), greedy)
    assert (draw(temperature=50.0) != greedy).mean() > 0.3
    likeliest = np.asarray(model(st.tensor(prompts)).logits.detach())[:, -1].argsort(1)[:, -3:]
    assert all(token in row for token, row in zip(draw(top_k=3)[:, 2], likeliest, strict=True))


def test_a_shared_weight_may_stand_in_a_state_dict_once() -> None:
    model = gpt2()
    state = {k: np.asarray(v) for k, v in model.state_dict().items()}
    once = {k: v for k, v in state.items() if k != "lm_head.weight"}
    other = gpt2()
    other.load_state_dict(once)
    np.testing.assert_array_equal(other.state_dict()["lm_head.weight"], state["transformer.wte.weight"])
    with pytest.raises(st.StratalError, match="one weight for both names"):
        other.load_state_dict({**state, "lm_head.weight": state["lm_head.weight"] + 1})
    gpt2(tie_word_embeddings=False).load_state_dict({**state, "lm_head.weight": state["lm_head.weight"] + 1})


ids = texts(2, 5)
REFUSED = {
    "one axis": (lambda: gpt2()(st.tensor(ids[0])), "takes integers"),
    "floats": (lambda: llama()(st.tensor(ids.astype(np.float32))), "takes integers"),
    "no token": (lambda: gpt2()(st.tensor(ids[:, :0])), "at least one token"),
    "another mask": (lambda: llama()(st.tensor(ids), st.ones(2, 4)), "attention_mask says"),
    "another mask of an encoder": (
        lambda: models.BertModel(models.BertConfig(**BERT))(st.tensor(ids), st.ones(2, 4)),
        "attention_mask says",
    ),
    "groups that do not divide": (
        lambda: models.LlamaConfig(num_attention_heads=4, num_key_value_heads=3), "divides",
    ),
    "a prompt of no tokens": (lambda: gpt2().generate(ids[:, :0]), "at least one token"),
    "a prompt padded behind": (lambda: gpt2().generate(ids, ids * 0), "pad prompts"),
    "more tokens than positions": (lambda: gpt2().generate(ids, max_new_tokens=60), "position for every"),
    "no token wanted": (lambda: gpt2().generate(ids, max_new_tokens=0), "at least 1"),
    "no temperature": (lambda: gpt2().generate(ids, do_sample=True, temperature=0.0), "positive"),
    "none of the likeliest": (lambda: gpt2().generate(ids, do_sample=True, top_k=0), "top_k at least 1"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_sense_is_refused(name: str) -> None:
    run, rule = REFUSED[name]
    with pytest.raises(st.StratalError, match=rule):
        run()
