"""Odd networks, loops and host calls: tiny models with a size or an argument of their call replaced."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from benchmarks.surface.entries import Entry
from odd_calls import OTHERS, Attempt, Call, made_up, odd, shown, spoiled, tensor, written

import stratal as st
from stratal import models


class Tiny(NamedTuple):
    """A constructor's arguments, and those of a call of what it makes (None: it is no network)."""

    made: Call
    called: Callable[[], tuple[Any, ...]] | None = None


def _made(*args: Any, **kwargs: Any) -> Call:
    return Call(args, kwargs)


def _image(channels: int = 3, size: int = 32) -> Callable[[], tuple[Any, ...]]:
    return lambda: (tensor(2, channels, size, size),)


def _words(*shape: int) -> Callable[[], tuple[Any, ...]]:
    return lambda: (st.ones(shape or (2, 5), dtype="int64"),)


def _graph() -> tuple[Any, ...]:
    return tensor(4, 5), st.tensor([[0, 1, 2], [1, 2, 3]])


_SMALL = {"num_classes": 3, "width_mult": 1 / 32}
_BERT = models.BertConfig(11, 8, 1, 2, 12, max_position_embeddings=16)
_GPT2 = models.GPT2Config(11, 16, 8, 1, 2)
_LLAMA = models.LlamaConfig(11, 8, 12, 1, 2, max_position_embeddings=16)
_STATES = (3, 4)
NETWORKS: dict[str, Tiny] = {
    "AlexNet": Tiny(_made(3, 0.0, width_mult=1 / 32), _image(size=63)),
    "AttnDecoderRNN": Tiny(
        _made(6, 7, 0.0), lambda: (tensor(2, 5, 6), tensor(1, 2, 6), st.ones((2, 4), dtype="int64"))
    ),
    "BNInception": Tiny(_made(3, width_mult=1 / 32), _image()),
    "BahdanauAttention": Tiny(_made(6), lambda: (tensor(2, 1, 6), tensor(2, 5, 6))),
    "BasicBlock": Tiny(_made(4, 4), _image(4, 6)),
    "BertConfig": Tiny(_made(11, 8, 1, 2, 12)),
    "BertForMaskedLM": Tiny(_made(_BERT), _words()),
    "BertForSequenceClassification": Tiny(_made(_BERT), _words()),
    "BertModel": Tiny(_made(_BERT), _words()),
    "Bottleneck": Tiny(_made(8, 2), _image(8, 6)),
    "CNNLSTM": Tiny(_made(3, 2, (4, 6), 8), lambda: (tensor(2, 3, 2, 5, 4),)),
    "ChildSumTreeLSTM": Tiny(
        _made(*_STATES),
        lambda: (tensor(2, 12), tensor(2, 4), tensor(3, 4), tensor(3, 4), st.tensor([0, 1, 2])),
    ),
    "EncoderRNN": Tiny(_made(7, 6, 0.0), _words()),
    "GAT": Tiny(_made(5, 4, 2, 3, heads=2), _graph),
    "GATConv": Tiny(_made(5, 4, 2), _graph),
    "GCN": Tiny(_made(5, 4, 2, 3), _graph),
    "GCNConv": Tiny(_made(5, 4), _graph),
    "GPT2Config": Tiny(_made(11, 16, 8, 1, 2)),
    "GPT2LMHeadModel": Tiny(_made(_GPT2), _words()),
    "GPT2Model": Tiny(_made(_GPT2), _words()),
    "GoogLeNet": Tiny(_made(3, width_mult=1 / 32), _image()),
    "GraphSAGE": Tiny(_made(5, 4, 2, 3), _graph),
    "LeNet": Tiny(_made(3), _image(1)),
    "LlamaConfig": Tiny(_made(11, 8, 12, 1, 2)),
    "LlamaForCausalLM": Tiny(_made(_LLAMA), _words()),
    "LlamaModel": Tiny(_made(_LLAMA), _words()),
    "MobileNetV2": Tiny(_made(3, 1 / 8, [(1, 16, 1, 1), (6, 24, 2, 2)], 4), _image()),
    "RNNModel": Tiny(_made("GRU", 7, 6, 6, 1), _words()),
    "ResNet": Tiny(_made(models.BasicBlock, (1, 1, 1, 1), 3, width_mult=1 / 16), _image()),
    "SAGEConv": Tiny(_made(5, 4), _graph),
    "Seq2Seq": Tiny(_made(7, 7, 6, 0.0), lambda: (*_words()(), *_words(2, 4)())),
    "Seq2SeqTransformer": Tiny(_made(1, 1, 8, 2, 7, 7, 12), lambda: (*_words()(), *_words(3, 5)())),
    "Tree": Tiny(_made(1, (models.Tree(2), models.Tree(3)))),
    "TreeLSTM": Tiny(_made(9, *_STATES, 3), lambda: (models.Tree(1, (models.Tree(2),)),)),
    "UNet": Tiny(_made(1, 3, width_mult=1 / 16), _image(1, 16)),
    "VAE": Tiny(_made(16, 8, 4), lambda: (tensor(2, 16),)),
    "VGG": Tiny(_made(st.nn.Conv2d(3, 8, 3), 3, width_mult=1 / 64), _image(size=8)),
    "VisionTransformer": Tiny(_made(16, 8, 1, 2, 8, 12, num_classes=3), _image(size=16)),
    "levels_of": Tiny(_made([models.Tree(1, (models.Tree(2),))])),
    "vae_loss": Tiny(_made(st.full((2, 16), 0.5), st.ones((2, 16)), tensor(2, 4), tensor(2, 4))),
    **{
        name: Tiny(_made(**_SMALL), _image())
        for name in ("bn_inception", "googlenet", "mobilenet_v2", "resnet18", "vgg11", "vgg11_bn")
    },
    "alexnet": Tiny(_made(**_SMALL), _image(size=63)),
}  # fmt: skip
# These are of a full size whatever the arguments say, or as others of fewer layers.
WIDE = {"resnet101", "resnet152", "resnet34", "resnet50", "vgg13", "vgg13_bn", "vgg16", "vgg16_bn", "vgg19",
        "vgg19_bn", "vit_b_16", "vit_b_32", "vit_h_14", "vit_l_16", "vit_l_32"}  # fmt: skip
UNCALLED = {"GoogLeNetOutputs", "Levels"}  # tuples: they take anything


def network(entry: Entry, rng: random.Random) -> Attempt:
    """Make a network with an odd argument, or call one with odd operands."""
    tiny = NETWORKS[entry.name]
    made, operands = tiny.made, tiny.called() if tiny.called else None
    way = rng.random()
    if way < 0.1:
        made = Call(made_up(rng, entry.value).args, made.kwargs)  # the widths stay
    elif way < 0.6 or operands is None:
        made = spoiled(rng, entry.value, made)
    wide = made.kwargs.get("width_mult")
    if isinstance(wide, (int, float, np.float32)) and 1 < wide < 100:  # a network that would fit, but slowly
        made = Call(made.args, {**made.kwargs, "width_mult": 1 / 16})
    if operands is None:
        return Attempt(written(entry.path, made), lambda: made.of(entry.value))
    called = Call(operands, {})
    if way >= 0.6:
        k = rng.randrange(len(operands))
        called = Call((*operands[:k], odd(rng, operands[k]), *operands[k + 1 :]), {})
    return Attempt(
        f"{written(entry.path, made)}({shown(called.args)})", lambda: called.of(made.of(entry.value))
    )


# -- loops and calls of the user's functions -----------------------------------------------------------------
_COUNTERS: list[Any] = [0, 1, 2.5, True, None, "a", [], (1,), st.zeros(3), st.zeros((), dtype="uint8"),
                        st.ones((), dtype="complex64"), st.tensor(0), np.int16(1), 1 << 70]  # fmt: skip
_STEPS: list[Callable[[Any], Any]] = [
    lambda x: x, lambda x: x * 2, lambda x: None, lambda x: x + 0.5, lambda x: (x, x), lambda x: x[None],
    lambda x: x.astype("int8"), lambda x: 3, lambda x: x.sum(), lambda x: st.ones(2, 3),
]  # fmt: skip
_STEPPED: list[Callable[[Any], Any]] = [lambda n: n + 1, lambda n: n + 1, lambda n: n + 1, lambda n: n + 1.5]
_WHILE: list[Callable[[Any], Any]] = [
    lambda n: n < 3, lambda n: n < 3, lambda n: n < 3, lambda n: False, lambda n: None, lambda n: "no",
    lambda n: st.ones(3) < 0, lambda n: n - 3, lambda n: (n < 3, n < 2),
]  # fmt: skip
_BOUNDS: list[Any] = [None, None, None, 0, 1, 3, -1, 1.5, True, "3", st.tensor(2), 1 << 70]


def loop(entry: Entry, rng: random.Random) -> Attempt:
    """Draw a loop over a counter and a value: whatever they are, the counter ends it."""
    start, x, bound = rng.choice(_COUNTERS), odd(rng, tensor(3)), rng.choice(_BOUNDS)
    test, count, step = rng.choice(_WHILE), rng.choice(_STEPPED), rng.choice(_STEPS)
    if test is _WHILE[7]:
        bound = 3  # n - 3 is no flag: where that is taken for one, the bound ends the loop
    init: Any = rng.choice(((start, x), {"n": start, "x": x}, [start, x], (start, x, start)))
    first: Any = rng.choice((lambda s: test(_parts(s)[0]),) * 9 + (odd(rng),))

    def body(s: Any) -> Any:
        n, value = _parts(s)[:2]
        n, value = count(n), step(value)
        return {"n": n, "x": value} if isinstance(s, dict) else type(s)([n, value, *s[2:]])

    text = f"{entry.path}(test, body, {shown(init)}, max_steps={shown(bound)})"
    return Attempt(text, lambda: entry.value(first, body, init, max_steps=bound))


def _parts(s: Any) -> list[Any]:
    return list(s.values()) if isinstance(s, dict) else list(s)


_HOST: list[Any] = [
    lambda *a: a[0] * 2, lambda *a: None, lambda *a: np.ones((2, 3), np.float32), lambda *a: "text",
    lambda *a: np.zeros(3, np.float32), lambda *a: (a[0], a[0]), lambda *a: [[1.0, 2.0], [3.0]], lambda: 1,
    len, 3, None,
]  # fmt: skip


def host(entry: Entry, rng: random.Random) -> Attempt:
    """Draw a function, what it is said to return and what it is given, none of which need fit."""
    results: list[Any] = [st.spec((3,), "float32"), st.zeros(3), None, (st.zeros(3), st.zeros((2, 3))), {},
                          st.spec((2, 3), "float32"), rng.choice(OTHERS)]  # fmt: skip
    function, result = rng.choice(_HOST), rng.choice(results)
    operands = [odd(rng, tensor(3)) for _ in range(rng.randrange(3))]
    options: dict[str, Any] = {"pure": rng.choice((True, odd(rng)))} if rng.random() < 0.5 else {}
    if rng.random() < 0.2:
        options["vjp"] = rng.choice(_HOST)
    call = Call((function, result, *operands), options)
    return Attempt(written(entry.path, call), lambda: call.of(entry.value))
