"""Calls that do not fit a signature, as people write them who come from other libraries: what is meant."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, Final, ParamSpec, TypeVar

from stratal.base.errors import AttributeValueError, DTypeError, StratalError

P = ParamSpec("P")
R = TypeVar("R")

OF_FIT: Final = {
    "validation_data": "validation=(x, y)", "val_data": "validation=(x, y)",
    "validation_split": "validation=(x, y); st.data.random_split divides a data set",
    "verbose": "progress=False shows nothing", "callbacks": "Trainer(.., callbacks=[..])",
    "steps_per_epoch": "an epoch is one pass over the data",
    "ckpt_path": "checkpoints=CheckpointManager(folder), resume=True",
    "sample_weight": "targets may be a tuple: fit((x, (y, weights))), with a loss of both",
    "class_weight": "a loss with weights: nn.CrossEntropyLoss(weight=..)",
    "max_epochs": "epochs=", "num_epochs": "epochs=", "y": "fit((x, y)): inputs and targets are a tuple",
}  # fmt: skip
OF_TRAINER: Final = {
    **dict.fromkeys(("epochs", "max_epochs", "num_train_epochs"), "fit(.., epochs=3)"),
    **dict.fromkeys(("batch_size", "validation", "checkpoints"), "fit(.., batch_size=.., validation=.., ..)"),
    "shuffle": "fit(.., shuffle=False)", "progress": "fit(.., progress=False)",
    "resume": "fit(.., checkpoints=.., resume=True)",
    **dict.fromkeys(("scheduler", "lr_scheduler"), "callbacks=[Schedule(scheduler)]"),
    **dict.fromkeys(("gradient_clip_val", "max_grad_norm", "clipnorm"), "clip_norm=1.0"),
    **dict.fromkeys(("accumulate_grad_batches", "gradient_accumulation_steps"), "accumulate=4"),
    **dict.fromkeys(("mixed_precision", "amp", "fp16", "bf16"), 'precision="bfloat16"'),
    **dict.fromkeys(("lr", "learning_rate"), "optimizer=optim.Adam(net.parameters(), lr=1e-3)"),
    **dict.fromkeys(("loss_fn", "criterion"), "loss="),
}


def explaining(also_called: Mapping[str, str]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a method of a trainer say what it cannot take of a call: it takes data, and options by name."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                found = _refusal(function.__name__, signature, args, kwargs, also_called)
                raise (error if found is None else found) from None
            return function(*args, **kwargs)

        return call

    return decorate


def _refusal(
    name: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any],
    also_called: Mapping[str, str],
) -> StratalError | None:  # fmt: skip
    for option in kwargs:
        if option not in signature.parameters:
            known = [p for p in signature.parameters if p != "self"]
            return unknown_option(name, option, known, also_called)
    if len(args) > 2:
        return DTypeError(
            f"{name}: takes the data, and options by name", got=f"{len(args) - 1} arguments without a name",
            hint=f"{name}((x, y)): inputs and targets are a tuple",
        )  # fmt: skip
    return None


def unknown_option(
    name: str, option: str, known: list[str], also_called: Mapping[str, str]
) -> AttributeValueError:
    """Return the error for an option that is not there: it says what the option is called, or is near."""
    near = get_close_matches(option, known, 1)
    there = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
    return AttributeValueError(
        f"{name}: an option it does not have", got=option, hint=also_called.get(option, there)
    )
