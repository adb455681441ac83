"""Stratal: deep learning, the whole stack in Python.

Names are loaded when first used, so that importing the package costs next to nothing.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

__version__ = "0.1.0"
__array_api_version__ = "2024.12"

_MODULES = (
    "amp", "autodiff", "compat", "cuda", "data", "deferred", "distributed", "distributions", "engine",
    "fft", "formats", "func", "inspect", "linalg", "metrics", "models", "nn", "optim", "random",
    "special", "te", "train",
)  # fmt: skip
_PLACES = {"cuda": "stratal.tensor.api.cuda", "random": "stratal.tensor.functions.random"}
_NAMES: dict[str, str] = {
    "stratal.base.dtypes": "bfloat16 bool_ complex128 complex64 float16 float32 float64 "
    "int16 int32 int64 int8 uint16 uint32 uint64 uint8",
    "stratal.base.errors": "DoesNotFit OffloadError StratalError",
    "stratal.tensor.autocast": "autocast get_autocast_dtype is_autocast_enabled",
    "stratal.tensor.capture": "compile frozen",
    "stratal.tensor.capture.fits": "fits memory_front",
    "stratal.tensor.device": "device",
    "stratal.tensor.transformations.control": "associative_scan cond fori_loop host_call map scan spec "
    "switch while_loop",
    "stratal.tensor.transformations.checkpoint": "checkpoint",
    "stratal.tensor.transformations.custom": "custom_jvp custom_vjp",
    "stratal.tensor.transformations.gradients": "check_grad grad gradients jvp linearize value_and_grad vjp",
    "stratal.tensor.api.info": "__array_namespace_info__ can_cast e finfo get_default_dtype "
    "get_num_threads iinfo inf isdtype nan newaxis pi result_type set_default_dtype set_num_threads",
    "stratal.tensor.transformations.jacobians": "hessian jacfwd jacobian jacrev",
    "stratal.tensor.lazy.flushing": "eager",
    "stratal.tensor.transformations.mapping": "vmap",
    "stratal.tensor.api.draws": "bernoulli multinomial normal rand rand_like randint randn randn_like "
    "randperm",
    "stratal.tensor.functions.random": "Generator get_rng_state initial_seed manual_seed set_rng_state",
    "stratal.tensor.values.state": "enable_grad inference_mode is_grad_enabled no_grad set_grad_enabled",
    "stratal.tensor.tensor": "Tensor",
    "stratal.fft.frames": "istft stft",
    "stratal.forecast": "estimate",
    "stratal.formats": "freeze load save",
    "stratal.linalg.as_pytorch": "chain_matmul cholesky cholesky_inverse cholesky_solve det inverse logdet "
    "matrix_exp matrix_power pinverse qr slogdet svd",
    "stratal.nn.offload": "offload",
    "stratal.nn.functional": "avg_pool1d bilinear binary_cross_entropy_with_logits celu channel_shuffle "
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d cosine_embedding_loss "
    "cosine_similarity hinge_embedding_loss margin_ranking_loss max_pool1d max_pool2d max_pool3d "
    "pairwise_distance pdist pixel_shuffle pixel_unshuffle prelu selu triplet_margin_loss",
    "stratal.special": "igamma igammac logit mvlgamma polygamma xlogy",
    "stratal.inspect.profiler": "profile",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
_RENAMED = {
    "bool": "bool_",
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "long": "int64",
    "int": "int32",
}


def __getattr__(name: str) -> Any:
    if name.startswith("__") and name not in _HOMES:
        raise AttributeError(name)
    if sys.is_finalizing():
        raise AttributeError(f"stratal.{name}: Python is shutting down, and imports nothing any more")
    from stratal.base.interrupts import UNINTERRUPTIBLE

    with UNINTERRUPTIBLE:  # no import stops halfway
        value = globals()[name] = _load(name)
    return value


def _load(name: str) -> Any:
    if name in _MODULES:
        value: Any = importlib.import_module(_PLACES.get(name, f"stratal.{name}"))
    elif name in _HOMES or name in _RENAMED:
        wanted = _RENAMED.get(name, name)
        importlib.import_module("stratal.tensor.api.functions")
        value = getattr(importlib.import_module(_HOMES[wanted]), wanted)
        value = importlib.import_module("stratal.tensor.api.explained").explained(value)
    else:
        functions = importlib.import_module("stratal.tensor.api.functions")
        if name not in functions.FUNCTIONS:
            from stratal.base.elsewhere import no_attribute

            raise no_attribute(sys.modules[__name__], "module 'stratal'", name)
        value = functions.FUNCTIONS[name]
    return value


def __dir__() -> list[str]:
    functions = importlib.import_module("stratal.tensor.api.functions")
    return sorted({*globals(), *_HOMES, *_MODULES, *_RENAMED, *functions.FUNCTIONS})
