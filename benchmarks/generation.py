"""Tokens per second of greedy texts: Stratal's compiled steps over a cache beside Hugging Face's, eagerly.

    python -m benchmarks.generation [--model gpt2,llama] [--layers 12] [--width 768] [--tokens 64] [--rounds
    5]

Both have the same random weights and must write the same text. Prints the best of the rounds, which take
turns.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any

import numpy as np

VOCAB, PROMPT = 50257, 32


def sizes(name: str, layers: int, width: int) -> dict[str, Any]:
    """Return the configuration of a model with heads of 64 features; Llama's keys serve two heads each."""
    heads = width // 64
    if name == "gpt2":
        return {"vocab_size": VOCAB, "n_embd": width, "n_layer": layers, "n_head": heads}
    return {
        "vocab_size": VOCAB, "hidden_size": width, "intermediate_size": 4 * width,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": heads // 2,
    }  # fmt: skip


CLASSES = {"gpt2": ("GPT2Config", "GPT2LMHeadModel"), "llama": ("LlamaConfig", "LlamaForCausalLM")}


def measure(name: str, layers: int, width: int, tokens: int, rounds: int, threads: int) -> dict[str, float]:
    """Return seconds of a first text and of the best later one with Stratal, and of the best with Hugging
    Face.
    """
    import torch
    import transformers

    from stratal import models

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    config, model = CLASSES[name]
    options = sizes(name, layers, width)
    theirs = getattr(transformers, model)(getattr(transformers, config)(**options)).eval()
    ours = getattr(models, model)(getattr(models, config)(**options)).eval()
    ours.load_state_dict(theirs.state_dict())
    prompt = np.random.default_rng(0).integers(0, VOCAB, (1, PROMPT))

    def own() -> Any:
        return np.asarray(ours.generate(prompt, max_new_tokens=tokens))

    def other() -> Any:
        with torch.no_grad():
            return theirs.generate(
                torch.tensor(prompt),
                max_new_tokens=tokens,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            ).numpy()

    def timed(run: Any) -> tuple[float, Any]:
        begun = time.perf_counter()
        text = run()
        return time.perf_counter() - begun, text

    first, text = timed(own)
    np.testing.assert_array_equal(text, other())
    turns = [(timed(own)[0], timed(other)[0]) for _ in range(rounds)]
    assert ours._last_logits.captures == 2
    return {"first": first, "stratal": min(t for t, _ in turns), "torch": min(t for _, t in turns)}


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.generation", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--model", default="gpt2,llama")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args(argv)
    threads = len(os.sched_getaffinity(0))
    for name in arguments.model.split(","):
        found = measure(name, arguments.layers, arguments.width, arguments.tokens, arguments.rounds, threads)
        own, other = (arguments.tokens / found[k] for k in ("stratal", "torch"))
        print(
            f"{name:6} {own:7.1f} tokens/s, Hugging Face {other:7.1f}: "
            f"{found['stratal'] / found['torch']:.2f} of its time; the first text took {found['first']:.1f} s"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
