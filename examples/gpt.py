"""Text: a small GPT-2 reads Python's standard library byte by byte, then writes some of its own.

Data: the modules of the Python that runs it, some millions of bytes.
"""

import sys
import sysconfig
from pathlib import Path

import numpy as np

import stratal as st
from stratal import optim
from stratal.models import GPT2Config, GPT2LMHeadModel


def write(net, prompt, temperature=0.8):
    """Return a prompt and what the network adds, a byte a call; it keeps what it needs of those before."""
    tokens = net.generate([list(prompt)], max_new_tokens=120, do_sample=True, temperature=temperature)
    return bytes(tokens[0].tolist()).decode(errors="replace")


def main(small=False):
    st.manual_seed(0)
    rng = np.random.default_rng(0)
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = np.frombuffer(b"\n".join(file.read_bytes() for file in files), np.uint8)
    sizes = {"vocab_size": 256, "n_positions": 192, "n_embd": 128, "n_layer": 4, "n_head": 4}
    net = GPT2LMHeadModel(GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
    steps, rows = (48, 8) if small else (1500, 16)
    optimizer = optim.AdamW(net.parameters(), lr=3e-3)
    schedule = optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps)

    @st.compile
    def step(batch):
        loss = net(batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    for k in range(1, steps + 1):
        starts = rng.integers(len(text) - 128, size=(rows, 1))
        loss = step(text[starts + np.arange(128)].astype(np.int64))
        schedule.step()
        if k % (steps // 6) == 0:
            print(f"step {k}: loss {loss.item():.3f}")
    net.eval()
    written = [write(net, prompt) for prompt in (b"class ", b"    def ", b"import ")]
    print(*written, sep="\n" + 80 * "-" + "\n")
    return loss.item(), written[0]


if __name__ == "__main__":
    main(small="--small" in sys.argv)
