"""Names people know from other libraries that `stratal` does not have, and what it has instead."""

from __future__ import annotations

from typing import Final

_INSTEAD: Final = {
    "autograd": "st.grad, st.vjp and st.jvp of functions; st.custom_vjp for a derivative of your own",
    "cuda mps xpu device": 'only the CPU is here; device="cpu" is taken wherever PyTorch takes a device',
    "jit script trace": "st.compile",
    "lax": "st.cond, st.switch, st.scan, st.while_loop, st.fori_loop and st.map",
    "numpy": "the functions are in stratal itself",
    "utils": "st.data for loaders, st.nn.utils for modules; st.checkpoint is a function",
    "set_num_threads get_num_threads": "the setting threads: STRATAL_THREADS=2",
    "set_default_dtype get_default_dtype": "dtype= where tensors are made; net.double() converts a module",
    "is_tensor": "isinstance(x, st.Tensor)",
    "FloatTensor DoubleTensor LongTensor IntTensor BoolTensor": "st.tensor(data, dtype=...)",
    "keras layers Model": "st.nn has the layers, and training is a loop",
}
_BY_NAME: Final = {name: instead for names, instead in _INSTEAD.items() for name in names.split()}


def no_attribute(module: str, name: str) -> AttributeError:
    """Return the error for a name that a module does not have."""
    instead = _BY_NAME.get(name)
    return AttributeError(
        f"module {module!r} has no attribute {name!r}" + (f"; there is instead: {instead}" if instead else "")
    )
