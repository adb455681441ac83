"""Models of texts against Hugging Face's: state dicts, logits, losses, gradients, greedy texts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from test_models_language import BERT, GPT2, LLAMA, texts  # noqa: E402
from torch_twins import assert_close, load  # noqa: E402

import stratal as st  # noqa: E402
from stratal import models  # noqa: E402

pytestmark = pytest.mark.torch

# name of the class: name of its configuration, sizes
TWINS = {
    "GPT2LMHeadModel": ("GPT2Config", {**GPT2, "n_layer": 2}),
    "LlamaForCausalLM": ("LlamaConfig", {**LLAMA, "num_hidden_layers": 2, "rope_theta": 100.0}),
    "BertForMaskedLM": ("BertConfig", {**BERT, "num_hidden_layers": 2}),
    "BertForSequenceClassification": ("BertConfig", BERT),
}
DECODERS = ("GPT2LMHeadModel", "LlamaForCausalLM")


def twins(name: str) -> tuple[Any, Any]:
    """Return our model and Hugging Face's with the same random weights, in evaluation mode, in float64."""
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    config, sizes = TWINS[name]
    torch.manual_seed(0)
    theirs = getattr(transformers, name)(getattr(transformers, config)(**sizes)).eval().double()
    if "rope_theta" in sizes:
        theirs.config.rope_parameters["rope_theta"] = sizes["rope_theta"]
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    ours = getattr(models, name)(getattr(models, config)(**sizes)).eval().double()
    load(ours, theirs)
    return ours, theirs


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", TWINS)
def test_a_model_agrees_with_hugging_faces(name: str, masked: bool) -> None:
    ours, theirs = twins(name)
    ids = texts(3, 20)
    mask = np.ones((3, 20), np.int64)
    if masked:
        mask[1, :6], mask[2, 2:4] = 0, 0
    before = np.pad(mask, ((0, 0), (1, 0)))[:, :-1]
    labels = np.where(mask * before == 1, ids, -100)  # what stands at padded places is nobody's concern
    if name == "BertForSequenceClassification":
        labels = np.array([0, 2, 1])
    data = {"input_ids": ids, "labels": labels} | ({"attention_mask": mask} if masked else {})
    found = ours(**{k: st.tensor(v) for k, v in data.items()})
    expected = theirs(**{k: torch.tensor(v) for k, v in data.items()})
    found.loss.backward()
    expected.loss.backward()
    counts = mask == 1 if expected.logits.ndim == 3 else slice(None)
    assert_close(
        np.asarray(found.logits.detach())[counts], expected.logits.detach().numpy()[counts], "logits", 1e-6
    )
    assert_close(found.loss.detach(), expected.loss.detach(), "loss", 1e-6)
    gradients = {n: p.grad.numpy() for n, p in theirs.named_parameters()}
    scale = max(np.abs(g).max() for g in gradients.values())
    for key, parameter in ours.named_parameters():
        np.testing.assert_allclose(parameter.grad, gradients[key], atol=2e-6 * scale, err_msg=key)


@pytest.mark.parametrize("name", DECODERS)
def test_greedy_texts_are_hugging_faces(name: str) -> None:
    ours, theirs = twins(name)
    ids, mask = texts(3, 9), np.ones((3, 9), np.int64)
    mask[1, :4] = 0

    def both(**options: Any) -> tuple[Any, Any]:
        with torch.no_grad():
            expected = theirs.generate(
                torch.tensor(ids), attention_mask=torch.tensor(mask), do_sample=False, **options
            )
        return np.asarray(ours.generate(ids, mask, **options)), expected.numpy()

    found, expected = both(max_new_tokens=30, eos_token_id=None, pad_token_id=0)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(*both(max_new_tokens=30, eos_token_id=int(found[0, 14]), pad_token_id=2))


def test_bert_reads_kinds_of_tokens_and_their_places() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    theirs = transformers.BertModel(transformers.BertConfig(**BERT)).eval()
    ours = models.BertModel(models.BertConfig(**BERT)).eval()
    load(ours, theirs)
    ids = texts(2, 6)
    data = {"input_ids": ids, "token_type_ids": ids % 2, "position_ids": np.arange(6)[None, ::-1] + 3}
    found = ours(**{k: st.tensor(v) for k, v in data.items()})
    with torch.no_grad():
        expected = theirs(**{k: torch.tensor(v.copy()) for k, v in data.items()})
    for a, b in zip(found, expected.to_tuple(), strict=True):
        assert_close(a.detach(), b)


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("name", TWINS)
def test_a_folder_that_hugging_face_wrote_is_read(name: str, parts: bool, tmp_path: Any) -> None:
    _, theirs = twins(name)
    theirs.float().save_pretrained(tmp_path, max_shard_size="6KB" if parts else "5GB")
    assert (tmp_path / "model.safetensors.index.json").exists() == parts
    ours = getattr(models, name).from_pretrained(tmp_path)
    assert not ours.training
    for key, value in theirs.state_dict().items():
        np.testing.assert_array_equal(ours.state_dict()[key], value.numpy(), err_msg=key)
    with torch.no_grad():
        expected = theirs(torch.tensor(texts(2, 5))).logits
    assert_close(ours(st.tensor(texts(2, 5))).logits.detach(), expected.numpy())


def test_weights_of_half_the_width_are_read() -> None:
    ours, theirs = twins("GPT2LMHeadModel")
    ours.float().load_state_dict(theirs.bfloat16().state_dict())
    for key, value in theirs.float().state_dict().items():
        np.testing.assert_array_equal(ours.state_dict()[key], value.numpy(), err_msg=key)
