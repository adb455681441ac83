"""GradScaler: losses times a factor, so that float16 gradients do not vanish; steps that overflow are undone.

See: Micikevicius et al. 2018, "Mixed Precision Training", section 3.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stratal.base import tree
from stratal.base.errors import AttributeValueError, CallOrderError
from stratal.nn.utils.gradients import whole_gradients, with_gradient
from stratal.optim.optimizer import Optimizer
from stratal.tensor.build import as_tensor
from stratal.tensor.functions.elementwise import isfinite, where
from stratal.tensor.tensor import Tensor, tensor
from stratal.tensor.values.state import MODE, no_grad


class GradScaler:
    """Scales losses up and gradients down by a factor that grows while they stay finite.

    As in PyTorch: `scale(loss).backward()`, `step(optimizer)`, `update()`; `unscale_(optimizer)` before
    gradients are clipped. Nothing of it asks Python for a value, so it works inside `st.compile`: a step with
    an infinite or NaN gradient is computed and not taken over, parameter by parameter, in the kernels that
    update them.

    Args:
        init_scale: the first factor; powers of two round nothing.
        growth_factor: what the factor is multiplied by after `growth_interval` finite steps in a row.
        backoff_factor: what it is multiplied by after a step that was not.
        enabled: without it losses and steps pass through.
    """

    def __init__(
        self, device: str = "cpu", init_scale: float = 65536.0, growth_factor: float = 2.0,
        backoff_factor: float = 0.5, growth_interval: int = 2000, enabled: bool = True,
    ) -> None:  # fmt: skip
        if not growth_factor > 1.0 or not 0.0 < backoff_factor < 1.0:
            raise AttributeValueError(
                "GradScaler: growth_factor is above 1, backoff_factor between 0 and 1",
                got=f"{growth_factor} and {backoff_factor}",
            )
        self._enabled = enabled
        self._factors = growth_factor, backoff_factor
        self._interval = int(growth_interval)
        self._scale = tensor(float(init_scale), dtype="float32")
        self._finite_steps = tensor(0, dtype="int32")
        self._overflows: dict[Optimizer, Tensor] = {}  # of the optimizers seen since the last update

    def is_enabled(self) -> bool:
        """Return whether losses are scaled."""
        return self._enabled

    # -- one step --------------------------------------------------------------------------------------------
    def scale(self, outputs: Any) -> Any:
        """Return a loss, or losses in lists, tuples and dicts, times the factor, in float32."""
        if not self._enabled:
            return outputs
        leaves, structure = tree.flatten(outputs)
        return tree.unflatten(structure, [as_tensor(x, "GradScaler.scale") * self._scale for x in leaves])

    @no_grad()
    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients of an optimizer's parameters by the factor, once between two updates."""
        if not self._enabled:
            return
        if optimizer in self._overflows:
            raise CallOrderError(
                "GradScaler: gradients are unscaled once between two calls of update()",
                hint="call update() at the end of each step",
            )
        factor = 1.0 / self._scale
        finite: Tensor | None = None
        params = with_gradient([p for group in optimizer.param_groups for p in group["params"]])
        if not params:
            raise CallOrderError(
                "GradScaler: no parameter of the optimizer has a gradient", hint="call backward() first"
            )
        with whole_gradients(params) as gradients:  # so that all ranks meet the same overflow
            for grad in gradients.tensors:
                grad.copy_((grad * factor).to(grad.dtype))
                whole = isfinite(grad).all()
                finite = whole if finite is None else finite & whole
            assert finite is not None  # there is a gradient
            finite = gradients.all_hold(finite)
        self._overflows[optimizer] = ~finite

    @no_grad()
    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Unscale gradients where that is still to do, and step; what an infinite gradient would have moved
        stays as it was.
        """
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if args or kwargs:
            raise AttributeValueError("GradScaler.step: takes no closure", got="a closure")
        if optimizer not in self._overflows:
            self.unscale_(optimizer)
        overflow = self._overflows[optimizer]
        hooked = MODE.trace is None and optimizer._hooks_steps()
        if hooked or type(optimizer).step is not Optimizer.step:  # what these change, nobody knows
            return None if bool(overflow) else optimizer.step()
        cells = optimizer.changed_by_step()
        before = [c.clone() for c in cells]
        result = optimizer.step()
        for cell, old in zip(cells, before, strict=True):
            cell.copy_(where(overflow, old, cell))
        return result

    @no_grad()
    def update(self, new_scale: Any = None) -> None:
        """Adapt the factor to what the steps since the last call met, or set it."""
        if not self._enabled:
            return
        if new_scale is not None:
            self._scale.copy_(as_tensor(new_scale, "GradScaler.update").to("float32"))
        elif not self._overflows:
            raise CallOrderError("GradScaler: update() comes after step() or unscale_()")
        else:
            overflow: Any = None
            for found in self._overflows.values():
                overflow = found if overflow is None else overflow | found
            growth, backoff = self._factors
            count = self._finite_steps + 1
            grows = count >= self._interval
            grown = where(grows, self._scale * growth, self._scale)
            grown = where(isfinite(grown), grown, self._scale)
            self._scale.copy_(where(overflow, self._scale * backoff, grown))
            self._finite_steps.copy_(where(overflow | grows, 0, count).to("int32"))
        self._overflows.clear()

    def overflow(self, optimizer: Optimizer) -> Tensor:
        """Return whether a gradient of an optimizer is not finite, bool[], from `unscale_` to `update`.

        Raises: CallOrderError.
        """
        if optimizer not in self._overflows:
            raise CallOrderError(
                "GradScaler.overflow: known between unscale_(optimizer), or step(optimizer), and update()"
            )
        return self._overflows[optimizer]

    # -- the factor ------------------------------------------------------------------------------------------
    def get_scale(self) -> float:
        """Return the factor."""
        return self._scale.item() if self._enabled else 1.0

    def get_growth_factor(self) -> float:
        """Return what the factor is multiplied by when it grows."""
        return self._factors[0]

    def get_backoff_factor(self) -> float:
        """Return what the factor is multiplied by after an overflow."""
        return self._factors[1]

    def get_growth_interval(self) -> int:
        """Return after how many finite steps in a row the factor grows."""
        return self._interval

    def state_dict(self) -> dict[str, Any]:
        """Return the factor and how it moves, under PyTorch's keys; nothing where scaling is off."""
        if not self._enabled:
            return {}
        return {
            "scale": self.get_scale(), "growth_factor": self._factors[0], "backoff_factor": self._factors[1],
            "growth_interval": self._interval, "_growth_tracker": int(self._finite_steps.item()),
        }  # fmt: skip

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state dict, ours or PyTorch's."""
        if not self._enabled:
            return
        missing = sorted({"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"}
                         - set(state_dict))  # fmt: skip
        if missing:
            raise AttributeValueError("GradScaler: the state dict lacks entries", got=", ".join(missing))
        self._factors = float(state_dict["growth_factor"]), float(state_dict["backoff_factor"])
        self._interval = int(state_dict["growth_interval"])
        self._scale.copy_(tensor(float(state_dict["scale"]), dtype="float32"))
        self._finite_steps.copy_(tensor(int(state_dict["_growth_tracker"]), dtype="int32"))


__all__ = ["GradScaler"]
