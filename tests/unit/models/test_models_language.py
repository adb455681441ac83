"""Models of texts, tiny: gradients against differences, 32 samples learnt by heart, caches."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from model_checks import check_gradients, overfit

import stratal as st
from stratal import models, nn, optim
from stratal.formats import save_tensors

F = nn.functional

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


def frames(count: int) -> Any:
    return np.random.default_rng(6).standard_normal((count, 3, 2, 5, 4)).astype(np.float32)


def log_loss(log_probs: Any, y: Any) -> Any:
    return F.nll_loss(log_probs.reshape((-1, log_probs.shape[-1])), y.reshape((-1,)))


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
CASES |= {
    f"words, {kind}": Case(
        lambda kind=kind: models.RNNModel(kind, VOCAB, 12, 12, 1, dropout=0.0, tie_weights=kind == "LSTM"),
        lambda m, ids: log_loss(m(ids[:-1])[0], ids[1:]),
        lambda n: (texts(n).T,),
    )
    for kind in ("LSTM", "GRU")
}
CASES |= {
    "seq2seq": Case(
        lambda: models.Seq2Seq(VOCAB, VOCAB, 12, dropout_p=0.0),
        lambda m, ids, mask, target: log_loss(m(ids, target, source_mask=mask).log_probs, target),
        lambda n: (texts(n), padded(n), texts(n)[:, ::-1].copy()),
    ),
    "transformer": Case(
        lambda: models.Seq2SeqTransformer(1, 1, 12, 2, VOCAB, VOCAB, 16, dropout=0.0),
        lambda m, ids, target: F.cross_entropy(
            m(ids, target[:-1], tgt_mask=m._causal(6)).reshape((-1, VOCAB)), target[1:].reshape((-1,))
        ),
        lambda n: (texts(n).T, texts(n)[:, ::-1].T.copy()),
    ),
    "frames": Case(
        lambda: models.CNNLSTM(3, 2, (4, 6), 8),
        lambda m, x, y: F.cross_entropy(m(x), y),
        lambda n: (frames(n), kinds(n)),
    ),
}
# Texts drawn at random start with a token nobody can foresee, so the least loss of a decoder is not 0.
LEAST = {
    "gpt2": 0.45,
    "llama": 0.45,
    "bert, masked tokens": 0.3,
    "bert, classes": 0.05,
    "seq2seq": 0.3,
    "transformer": 0.3,
    "frames": 0.05,
    "words, LSTM": 0.6,
    "words, GRU": 0.6,
}


@pytest.mark.sampled(15)
@pytest.mark.row("A11")
@pytest.mark.parametrize("name", CASES)
def test_gradients_of_a_model_are_those_of_its_loss(name: str) -> None:
    st.manual_seed(0)
    case = CASES[name]
    data = (x.astype(np.float64) if x.dtype.kind == "f" else x for x in case.data(3))
    check_gradients(case.build(), case.loss, *data)


@pytest.mark.sampled(15)
@pytest.mark.row("A11")
@pytest.mark.parametrize("name", CASES)
def test_a_model_learns_32_samples_by_heart(name: str) -> None:
    st.manual_seed(0)
    case = CASES[name]
    model = case.build()
    optimizer = optim.Adam(model.parameters(), lr=1e-2)
    first, last = overfit(model, optimizer, case.loss, *case.data(32), steps=250)
    assert last < LEAST[name] < first


def spread(model: Any) -> Any:
    """Return a model in evaluation mode with weights wide enough for its logits to differ."""
    st.manual_seed(1)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            st.nn.init.normal_(parameter, std=0.5)
    return model.eval()


def translator() -> Any:
    return models.Seq2SeqTransformer(1, 1, 12, 2, VOCAB, VOCAB, 16)


@pytest.mark.sampled(4)
def test_a_transformer_decodes_the_likeliest_token_after_those_before() -> None:
    model, source = spread(translator()), st.tensor(texts(3, 6).T)
    found = np.asarray(model.greedy_decode(source, 9, start_symbol=1))
    assert found.shape == (9, 3) and model._following.captures == 1
    logits = model(source, st.tensor(found), tgt_mask=model._causal(9)).detach()
    np.testing.assert_array_equal(np.asarray(logits)[:-1].argmax(2), found[1:])
    end = int(found[4, 0])
    short = np.asarray(model.greedy_decode(source, 9, 1, end_symbol=end))
    for column, whole in zip(short.T, found.T, strict=True):
        k = list(whole[1:]).index(end) + 1 if end in whole[1:] else 8
        np.testing.assert_array_equal(column[: k + 1], whole[: len(column)][: k + 1])
        assert (column[k + 1 :] == end).all()


def test_a_decoder_that_chooses_follows_its_own_choices() -> None:
    model, source = spread(models.Seq2Seq(VOCAB, VOCAB, 12)), st.tensor(texts(4, 6))
    free = model(source, length=7)
    chosen = free.log_probs.argmax(-1)
    led = model(source, chosen)
    np.testing.assert_allclose(led.log_probs.detach(), free.log_probs.detach(), 1e-4, 1e-5)
    np.testing.assert_allclose(free.attentions.detach().sum(-1), np.ones((4, 7)), 1e-5)


def test_what_a_source_is_padded_with_is_not_read() -> None:
    model, source = spread(models.Seq2Seq(VOCAB, VOCAB, 12)), texts(2, 6)
    outputs, hidden = model.encoder(st.tensor(source))
    mask = np.array([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]], bool)
    whole = model.decoder(outputs, hidden, length=3, mask=st.tensor(mask))
    cut = model.decoder(outputs[:1, :4], hidden[:, :1], length=3)
    np.testing.assert_allclose(whole.log_probs.detach()[0], cut.log_probs.detach()[0], 1e-5, 1e-6)


DECODERS = {"gpt2": gpt2, "llama": llama}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", DECODERS)
def test_earlier_keys_and_values_replace_earlier_tokens(name: str) -> None:
    model, ids = spread(DECODERS[name]()), texts(2, 9)
    whole = model(st.tensor(ids)).logits.detach()
    past = model(st.tensor(ids[:, :4]), use_cache=True).keys_values
    rest = model(st.tensor(ids[:, 4:]), past=past).logits.detach()
    np.testing.assert_allclose(rest, np.asarray(whole)[:, 4:], 1e-4, 1e-5)
    last = model(st.tensor(ids), logits_to_keep=2).logits.detach()
    np.testing.assert_allclose(last, np.asarray(whole)[:, -2:], 1e-4, 1e-5)
    one = model(st.tensor(ids[:, 4:5]), past=past).logits.detach()
    np.testing.assert_allclose(one, np.asarray(whole)[:, 4:5], 1e-4, 1e-5)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", DECODERS)
def test_generation_with_a_cache_is_that_without_in_two_programs(name: str) -> None:
    model, prompts = spread(DECODERS[name]()), texts(2, 5)
    found = np.asarray(model.generate(prompts, max_new_tokens=40))
    np.testing.assert_array_equal(found[:, :5], prompts)
    logits = model(st.tensor(found)).logits.detach()
    np.testing.assert_array_equal(np.asarray(logits)[:, 4:-1].argmax(2), found[:, 5:])
    assert model._last_logits.captures == 2
    np.testing.assert_array_equal(model.generate(prompts[:, :3], max_new_tokens=9)[:, :3], prompts[:, :3])
    assert model._last_logits.captures == 2  # another length, the same two


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_model_of_16_bits_keeps_what_it_saw_in_16_bits(dtype: str) -> None:
    model, prompts = spread(gpt2()).to(dtype=dtype), texts(2, 5)
    found = np.asarray(model.generate(prompts, max_new_tokens=3))
    logits = model(st.tensor(found)).logits.detach().float()
    np.testing.assert_array_equal(np.asarray(logits)[:, 4:-1].argmax(2), found[:, 5:])


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


@pytest.mark.sampled(4)
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


@pytest.mark.quick
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
    "heads that do not divide": (
        lambda: models.BertModel(models.BertConfig(**{**BERT, "num_attention_heads": 3}))(st.tensor(ids)),
        "heads divides the features",
    ),
    "a prompt of no tokens": (lambda: gpt2().generate(ids[:, :0]), "at least one token"),
    "a prompt padded behind": (lambda: gpt2().generate(ids, ids * 0), "pad prompts"),
    "more tokens than positions": (lambda: gpt2().generate(ids, max_new_tokens=60), "position for every"),
    "tied weights of two widths": (
        lambda: models.RNNModel("LSTM", 5, 4, 6, 1, tie_weights=True), "tied weights need",
    ),
    "an unknown kind": (lambda: models.RNNModel("SRU", 5, 4, 6, 1), "rnn_type is one of"),
    "a target and a length": (
        lambda: models.Seq2Seq(5, 5, 4)(st.tensor(ids % 5), st.tensor(ids % 5), 3), "either a target or",
    ),
    "no step of a decoder": (
        lambda: translator().greedy_decode(st.tensor(ids.T), 0, 1), "max_len is at least 1",
    ),
    "an image for frames": (lambda: models.CNNLSTM(3)(st.zeros(2, 3, 8, 8)), "takes frames"),
    "frames too small": (lambda: models.CNNLSTM(3)(st.zeros(1, 2, 3, 8, 7)), "at least 8"),
    "no convolution": (lambda: models.CNNLSTM(3, channels=()), "at least one convolution"),
    "a text longer than positions": (lambda: gpt2()(st.tensor(texts(1, 65))), "positions for 64 tokens"),
    "a longer text of an encoder": (
        lambda: models.BertModel(models.BertConfig(**BERT))(st.tensor(texts(1, 65))), "positions for 64",
    ),
    "earlier keys of another shape": (lambda: gpt2()(st.tensor(ids), past=st.zeros(3)), "past: takes keys"),
    "half a token": (lambda: gpt2().generate(ids, max_new_tokens=2.5), "max_new_tokens is an int"),
    "half a token to end with": (lambda: gpt2().generate(ids, eos_token_id=2.5), "a token is an int"),
    "no token wanted": (lambda: gpt2().generate(ids, max_new_tokens=0), "at least 1"),
    "no temperature": (lambda: gpt2().generate(ids, do_sample=True, temperature=0.0), "positive"),
    "none of the likeliest": (lambda: gpt2().generate(ids, do_sample=True, top_k=0), "top_k at least 1"),
}  # fmt: skip


WITH_DROPOUT: dict[str, tuple[Callable[[], Any], str]] = {
    "gpt2": (lambda: models.GPT2LMHeadModel(models.GPT2Config(**GPT2)), "gpt2"),
    "llama": (lambda: llama(attention_dropout=0.2), "llama"),
    "bert": (
        lambda: models.BertForSequenceClassification(
            models.BertConfig(**{**BERT, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1})
        ),
        "bert, classes",
    ),
    "words": (lambda: models.RNNModel("LSTM", VOCAB, 12, 12, 2), "words, LSTM"),
    "seq2seq": (lambda: models.Seq2Seq(VOCAB, VOCAB, 12), "seq2seq"),
    "transformer": (translator, "transformer"),
    "frames": (lambda: models.CNNLSTM(3, 2, (4, 6), 8, 1, 0.5), "frames"),
}


@pytest.mark.sampled(13)
@pytest.mark.parametrize("name", WITH_DROPOUT)
def test_dropout_follows_the_seed_in_training_and_is_off_in_evaluation(name: str) -> None:
    build, case = WITH_DROPOUT[name]
    model, data = build(), [st.tensor(x) for x in CASES[case].data(4)]
    run = st.compile(lambda *data: CASES[case].loss(model, *data))

    def loss(seed: int) -> float:
        st.manual_seed(seed)
        return float(run(*data))

    assert loss(1) == loss(1) != loss(2)
    model.eval()
    assert loss(1) == loss(2)


LENGTHS_CHANGE: dict[str, tuple[Callable[[], Any], Callable[[Any, Any], Any]]] = {
    "llama": (llama, lambda m, ids: m(ids).logits),
    "bert": (
        lambda: models.BertModel(models.BertConfig(**BERT)),
        lambda m, ids: m(ids, ids != 3).last_hidden_state,
    ),
    "transformer": (translator, lambda m, ids: m(ids, ids, tgt_mask=m._causal(ids.shape[0]))),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", LENGTHS_CHANGE)
def test_texts_of_other_lengths_need_no_program_each(name: str) -> None:
    build, call = LENGTHS_CHANGE[name]
    model = build().eval()
    run = st.compile(lambda ids: call(model, ids))
    with st.no_grad():
        for size in ((2, 5), (3, 9), (5, 7), (4, 12), (1, 16)):
            ids = texts(*size)
            np.testing.assert_allclose(run(st.tensor(ids)), call(model, st.tensor(ids)), 1e-4, 1e-5)
    assert run.captures == 2


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_sense_is_refused(name: str) -> None:
    run, rule = REFUSED[name]
    with pytest.raises(st.StratalError, match=rule):
        run()


def written(folder: Any, model: Any, **options: Any) -> Any:
    """Write a folder as Hugging Face does."""
    save_tensors(folder / "model.safetensors", model.state_dict())
    config = {**dataclasses.asdict(model.config), "model_type": "?", "use_cache": True, **options}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_model_comes_from_a_folder_with_its_configuration(tmp_path: Any) -> None:
    saved = llama(rope_theta=50.0)
    found = models.LlamaForCausalLM.from_pretrained(written(tmp_path, saved), attention_dropout=0.25)
    assert found.config == dataclasses.replace(saved.config, attention_dropout=0.25) and not found.training
    newer = {"rope_parameters": {"rope_theta": 7.0, "rope_type": "default"}}
    assert models.LlamaForCausalLM.from_pretrained(written(tmp_path, saved, **newer)).config.rope_theta == 7.0
    for name, value in saved.state_dict().items():
        np.testing.assert_array_equal(found.state_dict()[name], value)


def test_the_first_files_of_gpt2_are_read() -> None:
    saved, found = gpt2(), gpt2()
    state = {
        k.removeprefix("transformer."): v for k, v in saved.state_dict().items() if k != "lm_head.weight"
    }
    found.load_state_dict({**state, "h.0.attn.bias": np.ones((1, 1, 64, 64), bool)})
    for name, value in saved.state_dict().items():
        np.testing.assert_array_equal(found.state_dict()[name], value)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling is None"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope_type is 'default'"),
        ({"hidden_act": "relu"}, "hidden_act is 'silu'"),
        ({"hidden_size": 20}, "does not fit"),
    ],
    ids=str,
)
def test_a_model_that_would_compute_something_else_is_refused(options: Any, rule: str, tmp_path: Any) -> None:
    with pytest.raises(st.StratalError, match=rule):
        models.LlamaForCausalLM.from_pretrained(written(tmp_path, llama(), **options))


def test_a_folder_that_is_none_is_refused(tmp_path: Any) -> None:
    for content in (None, "[1]", "{"):
        if content is not None:
            (tmp_path / "config.json").write_text(content)
        with pytest.raises(st.StratalError, match="from_pretrained"):
            models.BertModel.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(BERT))
    with pytest.raises(st.StratalError, match=r"model\.safetensors"):
        models.BertModel.from_pretrained(tmp_path)


def test_only_matrices_of_bert_are_drawn() -> None:
    net = models.BertModel(models.BertConfig(**BERT))
    vectors = {name: p for name, p in net.named_parameters() if p.ndim == 1}
    assert vectors
    for name, p in vectors.items():
        assert set(p.tolist()) == {0.0 if name.endswith("bias") else 1.0}, name
