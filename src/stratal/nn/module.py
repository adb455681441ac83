"""Module: a tree of parameters, buffers and child modules, with a forward function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Protocol, TypeVar

from stratal.base.elsewhere import instead_of
from stratal.base.errors import AttributeValueError, StratalError
from stratal.base.interrupts import deferring
from stratal.base.source import inside_module
from stratal.nn import hooks
from stratal.nn.backward_hooks import WatchedCall
from stratal.nn.convert import convert, on_the_cpu
from stratal.nn.hooks import TABLES, Hooked
from stratal.nn.markup import module_html
from stratal.nn.parameter import Parameter
from stratal.nn.state import LoadResult, load_into
from stratal.nn.summary import Summary, summary
from stratal.tensor.api.explained import explain_methods
from stratal.tensor.capture import compile as compiled
from stratal.tensor.capture import note_mutation
from stratal.tensor.tensor import Tensor
from stratal.tensor.values.notifying import Table
from stratal.tensor.values.state import MODE

Self = TypeVar("Self", bound="Module")
EXTRA_STATE = "_extra_state"  # the key of what get_extra_state returns, as in PyTorch


_TABLES = ("_parameters", "_buffers", "_modules")


class ModuleAttributeError(StratalError, AttributeError):
    """An attribute a module does not have. What is like it is looked for when the error is shown."""

    def __str__(self) -> str:
        text = super().__str__()
        tables = getattr(self.obj, "__dict__", {})
        own = [*dir(type(self.obj)), *tables, *(n for t in _TABLES for n in tables.get(t, ()))]
        near = get_close_matches(str(self.name), [n for n in own if not n.startswith("_")], 1)
        return text.replace(self.advice, f"did you mean {near[0]}?") if near else text


class Computed(Protocol):
    """A tensor of a module that is computed from others whenever it is read, such as a normalised weight."""

    def __call__(self, module: Any) -> Tensor: ...

    def assign(self, module: Any, value: Any) -> None: ...


class Module(Hooked):
    """Base of every layer and model. A subclass makes its parts in `__init__` and computes in `forward`.

    Attributes that are parameters, tensors registered as buffers, or modules are found by name.

    Setting an attribute tells compiled functions that a value they froze may have changed.
    """

    training: bool

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__module__.startswith("stratal.") and "__init__" in cls.__dict__:
            cls.__init__ = on_the_cpu(cls.__init__)  # type: ignore[method-assign]
        explain_methods(cls, "__init__", "forward")

    def __init__(self) -> None:
        fields: dict[str, Any] = {
            "training": True,
            **{table: Table() for table in ("_parameters", "_buffers", "_modules")},
            "_non_persistent": set(),
            "_computed": {},
            "_compiled": None,
            **{table: Table() for table in TABLES},
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the result. Every subclass defines it."""
        raise StratalError(
            f"{type(self).__name__}: has no forward",
            got=f"a call of {len(args)} arguments",
            hint="define forward(self, ...) in the class",
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        own = self.__dict__  # once: the attributes of a module take longer
        if own["_compiled"] is not None:
            return own["_compiled"](*args, **kwargs)
        if MODE.__dict__["trace"] is not None:  # what is traced knows the module it is of
            with inside_module(self, self.named_modules):
                return self._call(*args, **kwargs)
        if own["_forward_hooks"] or own["_forward_pre_hooks"]:
            return self._call(*args, **kwargs)
        if own["_backward_hooks"] or own["_backward_pre_hooks"]:
            return self._call(*args, **kwargs)
        return self.forward(*args, **kwargs)

    def compile(self, *, dynamic: bool | None = None) -> None:
        """Compile this module's calls in place, as `st.compile` does: its state and parts stay its own."""
        self._compiled = compiled(self._call, name=type(self).__name__, dynamic=dynamic)

    def __getstate__(self) -> dict[str, Any]:
        """A copy is not compiled: what was captured belongs to this module's tensors."""
        return {**self.__dict__, "_compiled": None}

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        """Run forward between the hooks."""
        args, kwargs = hooks.run_before(self._forward_pre_hooks, self, args, kwargs)
        call = None
        if self._backward_hooks or self._backward_pre_hooks:
            call = WatchedCall(self, self._backward_pre_hooks, self._backward_hooks)
            args = call.inputs(args)
        result = self.forward(*args, **kwargs)
        result = hooks.run_after(self._forward_hooks, self, args, kwargs, result)
        return result if call is None else call.results(result)

    # -- attributes ------------------------------------------------------------------------------------------
    def __setattr__(self, name: str, value: Any) -> None:
        tables = self.__dict__
        if "_parameters" not in tables:
            raise AttributeValueError(
                f"{type(self).__name__}: attribute set before Module.__init__", got=name,
                hint="call super().__init__() first",
            )  # fmt: skip
        if isinstance(value, Parameter) and name not in self._computed:
            self._forget(name, self._parameters)
            self._parameters[name] = value
        elif isinstance(value, Module):
            self._forget(name, self._modules)
            self._modules[name] = value
        elif name in self._parameters:
            if value is not None:
                raise AttributeValueError(
                    f"{type(self).__name__}: {name!r} is a parameter", got=type(value).__name__,
                    hint="wrap the value in nn.Parameter, or assign None to remove it",
                )  # fmt: skip
            self._parameters[name] = None
        elif name in self._buffers and (value is None or isinstance(value, Tensor)):
            self._buffers[name] = value
        elif name in self._modules and value is None:
            self._modules[name] = None
        elif name in self._computed:
            self._computed[name].assign(self, value)
        else:
            object.__setattr__(self, name, value)
        note_mutation()

    def __getattr__(self, name: str) -> Any:
        # Called only where the ordinary lookup failed.
        tables = self.__dict__
        for table in _TABLES:
            if table in tables and name in tables[table]:
                return tables[table][name]
        if name in tables.get("_computed", ()):
            return tables["_computed"][name](self)
        rule = f"{type(self).__name__}: has no attribute {name!r}"
        error = ModuleAttributeError(rule, hint=instead_of(name))
        error.name, error.obj = name, self
        raise error

    def __delattr__(self, name: str) -> None:
        if any(name in table for table in self._tables()):
            self._forget(name)
        else:
            object.__delattr__(self, name)
        note_mutation()

    def __dir__(self) -> Iterable[str]:
        return sorted({*super().__dir__(), *(name for table in self._tables() for name in table)})

    def _tables(self) -> tuple[dict[str, Any], ...]:
        return self._parameters, self._buffers, self._modules, self._computed

    def _forget(self, name: str, keep: dict[str, Any] | None = None) -> None:
        """Drop a name from all tables but `keep`, where it is replaced at its place."""
        self.__dict__.pop(name, None)
        for table in self._tables():
            if table is not keep:
                table.pop(name, None)
        self._non_persistent.discard(name)

    def _register(self, kind: str, table: dict[str, Any], name: str, value: Any, takes: Any) -> None:
        """Put a value, or None, into a table; it is in no other one then. Raises: AttributeValueError."""
        if not isinstance(name, str) or "." in name or not name:
            raise AttributeValueError(
                f"{kind}: the name must be a non-empty string without dots", got=repr(name)
            )
        taken = any(name in table for table in self._tables())
        if not taken and hasattr(self, name):
            raise AttributeValueError(
                f"{kind}: {type(self).__name__} has an attribute of that name", got=repr(name)
            )
        if value is not None and not isinstance(value, takes):
            raise AttributeValueError(f"{kind}: takes a {takes.__name__} or None", got=type(value).__name__)
        self._forget(name, table)
        table[name] = value
        note_mutation()

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Add a parameter under a name; None keeps the name and has no value."""
        self._register("register_parameter", self._parameters, name, param, Parameter)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Add a tensor that is state but not trained; only persistent ones are saved."""
        self._register("register_buffer", self._buffers, name, tensor, Tensor)
        if not persistent:
            self._non_persistent.add(name)

    def register_module(self, name: str, module: Module | None) -> None:
        """Add a child module under a name."""
        self._register("register_module", self._modules, name, module, Module)

    add_module = register_module

    # -- walking the tree ------------------------------------------------------------------------------------
    def named_modules(
        self, memo: set[Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """Yield this module and every one below it with dotted names, each module once."""
        seen = set() if memo is None else memo
        if self in seen:
            return
        if remove_duplicate:
            seen.add(self)
        yield prefix, self
        for name, child in self._modules.items():
            if child is not None:
                yield from child.named_modules(seen, _join(prefix, name), remove_duplicate)

    def modules(self) -> Iterator[Module]:
        """Yield this module and every one below it."""
        for _, module in self.named_modules():
            yield module

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Yield the direct children with their names, each module once."""
        seen: set[Module] = set()
        for name, child in self._modules.items():
            if child is not None and child not in seen:
                seen.add(child)
                yield name, child

    def children(self) -> Iterator[Module]:
        """Yield the direct children."""
        for _, child in self.named_children():
            yield child

    def _named(
        self, table: str, prefix: str, recurse: bool, remove_duplicate: bool
    ) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        owners = self.named_modules(None, prefix, remove_duplicate) if recurse else [(prefix, self)]
        for owner, module in owners:
            for name, value in module.__dict__[table].items():
                if value is None or id(value) in seen:
                    continue
                if remove_duplicate:
                    seen.add(id(value))
                yield _join(owner, name), value

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Yield parameters with dotted names; one shared by several modules comes once, under its first
        name.
        """
        return self._named("_parameters", prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Yield parameters, each once."""
        for _, parameter in self.named_parameters(recurse=recurse):
            yield parameter

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield buffers with dotted names."""
        return self._named("_buffers", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """Yield buffers, each once."""
        for _, buffer in self.named_buffers(recurse=recurse):
            yield buffer

    def get_submodule(self, target: str) -> Module:
        """Return the module of a dotted name; the empty name is this module."""
        module: Module = self
        for name in target.split(".") if target else ():
            child = module._modules.get(name)
            if child is None:
                raise ModuleAttributeError(
                    f"get_submodule: {type(module).__name__} has no module {name!r}", got=target,
                    hint="it has " + (", ".join(module._modules) or "none"),
                )  # fmt: skip
            module = child
        return module

    def set_submodule(self, target: str, module: Module) -> None:
        """Replace the module of a dotted name."""
        owner, _, name = target.rpartition(".")
        self.get_submodule(target)
        self.get_submodule(owner).register_module(name, module)

    def get_parameter(self, target: str) -> Parameter:
        """Return the parameter of a dotted name."""
        return self._get("_parameters", "parameter", target)

    def get_buffer(self, target: str) -> Tensor:
        """Return the buffer of a dotted name."""
        return self._get("_buffers", "buffer", target)

    def _get(self, table: str, kind: str, target: str) -> Any:
        owner, _, name = target.rpartition(".")
        module = self.get_submodule(owner)
        value = module.__dict__[table].get(name)
        if value is None:
            raise ModuleAttributeError(
                f"get_{kind}: {type(module).__name__} has no {kind} {name!r}", got=target
            )
        return value

    def apply(self: Self, fn: Callable[[Module], Any]) -> Self:
        """Call `fn` on every module, children before parents, and return self."""
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    # -- modes, dtypes, gradients ------------------------------------------------------------------
    def train(self: Self, mode: bool = True) -> Self:
        """Put this module and all below it into training (or evaluation) mode."""
        if not isinstance(mode, bool):
            raise AttributeValueError("train: mode must be a bool", got=repr(mode))
        for module in self.modules():
            if module.training is not mode:
                module.training = mode
        return self

    def eval(self: Self) -> Self:
        """Put this module and all below it into evaluation mode."""
        return self.train(False)

    def requires_grad_(self: Self, requires_grad: bool = True) -> Self:
        """Say for every parameter whether gradients reach it."""
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the parameters' gradients, or fill them with zeros."""
        for parameter in self.parameters():
            parameter.zero_grad(set_to_none)

    def to(self: Self, *args: Any, dtype: Any = None, device: Any = None) -> Self:
        """Convert floating-point parameters and buffers in place.

        Accepts a dtype, a device, or a tensor to follow.
        """
        tables = [table for m in self.modules() for table in (m._parameters, m._buffers)]
        tensors = [t for table in tables for t in table.values() if t is not None]
        convert(tensors, *args, dtype=dtype, device=device)
        return self

    def to_empty(self: Self, *, device: Any, recurse: bool = True) -> Self:
        """Return self, whose values then mean nothing in PyTorch: on the only device there is, they stay."""
        convert((), device=device)
        return self

    def cuda(self: Self, device: Any = None) -> Self:
        """Refuse: there is only the CPU."""
        return self.to("cuda" if device is None else device)

    def cpu(self: Self) -> Self:
        """Return self: the only device is the CPU."""
        return self

    def type(self: Self, dst_type: Any) -> Self:
        """Convert floating-point parameters and buffers to a dtype."""
        return self.to(dtype=dst_type)

    def float(self: Self) -> Self:
        """Convert floating-point parameters and buffers to float32."""
        return self.to(dtype="float32")

    def double(self: Self) -> Self:
        """Convert floating-point parameters and buffers to float64."""
        return self.to(dtype="float64")

    def half(self: Self) -> Self:
        """Convert floating-point parameters and buffers to float16."""
        return self.to(dtype="float16")

    def bfloat16(self: Self) -> Self:
        """Convert floating-point parameters and buffers to bfloat16."""
        return self.to(dtype="bfloat16")

    # -- state dicts -------------------------------------------------------------------------------
    def state_dict(self, *, prefix: str = "", keep_vars: bool = False) -> dict[str, Any]:
        """Return parameters and persistent buffers by dotted name: values as they are now, unless
        `keep_vars`; and what `get_extra_state` returns where a module defines it.
        """
        owners = list(self._owners(prefix))
        for name, part in owners:
            for hook in hooks.in_order(part._state_dict_pre_hooks):
                hook.function(part, name, keep_vars)
        state: dict[str, Any] = {}
        for name, part in owners:
            live = part._own_state(name)
            state |= live if keep_vars else {key: value._snapshot() for key, value in live.items()}
            if type(part).get_extra_state is not Module.get_extra_state:
                state[name + EXTRA_STATE] = part.get_extra_state()
        for name, part in owners:
            for hook in hooks.in_order(part._state_dict_hooks):
                hook.function(part, state, name, {})
        return state

    @deferring
    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> LoadResult:
        """Copy values (tensors of any library, or arrays) into parameters and buffers of the same names.

        Nothing is written unless everything fits. Raises: StateDictError that lists what is missing,
        unexpected or misshapen.
        """
        if not isinstance(state_dict, Mapping):
            has = hasattr(state_dict, "state_dict")
            raise AttributeValueError(
                f"{type(self).__name__}.load_state_dict: takes a state dict",
                got=f"a {type(state_dict).__name__}",
                hint="hand over its state_dict()" if has else "st.load(path) reads one that was saved",
            )
        state = dict(state_dict)
        for name, part in self._owners():
            for hook in hooks.in_order(part._load_state_dict_pre_hooks):
                hook.function(part, state, name, {}, strict, [], [], [])
        owners = dict(self._owners())
        live = {key: value for name, part in owners.items() for key, value in part._own_state(name).items()}
        extra = {
            name + EXTRA_STATE: part
            for name, part in owners.items()
            if type(part).set_extra_state is not Module.set_extra_state
        }
        result = load_into(live, state, strict, type(self).__name__, extra)
        for key, part in extra.items():
            if key in state:
                part.set_extra_state(state[key])
        for part in owners.values():
            for hook in hooks.in_order(part._load_state_dict_post_hooks):
                hook.function(part, result)
        return result

    def get_extra_state(self) -> Any:
        """Return what else a state dict holds of this module, of any type. A subclass defines it."""
        raise StratalError(f"{type(self).__name__}: has no extra state", hint="define get_extra_state(self)")

    def set_extra_state(self, state: Any) -> None:
        """Take over what `get_extra_state` returned. A subclass defines it."""
        raise StratalError(
            f"{type(self).__name__}: has no extra state", hint="define set_extra_state(self, state)"
        )

    def _own_state(self, prefix: str) -> dict[str, Tensor]:
        """Return this module's parameters and persistent buffers by name, without those of its children."""
        own = {**self._parameters, **self._buffers}
        return {prefix + k: v for k, v in own.items() if v is not None and k not in self._non_persistent}

    def _owners(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """Yield this module and all below it with the prefix of its keys in a state dict."""
        start = prefix[:-1] if prefix.endswith(".") else prefix
        for name, part in self.named_modules(prefix=start, remove_duplicate=False):
            yield name + "." if name else "", part

    # -- text --------------------------------------------------------------------------------------
    def _get_name(self) -> str:
        return ("Parametrized" if "parametrizations" in self._modules else "") + type(self).__name__

    def extra_repr(self) -> str:
        """Return what stands between the parentheses of this module's printed form."""
        return ""

    def _shown_children(self) -> Iterator[tuple[str, str]]:
        for name, child in self._modules.items():
            yield name, repr(child)

    def __repr__(self) -> str:
        children = [f"({name}): {_indent(text)}" for name, text in self._shown_children()]
        extra = self.extra_repr().split("\n") if self.extra_repr() else []
        if not children and len(extra) <= 1:
            return f"{self._get_name()}({''.join(extra)})"
        return f"{self._get_name()}(\n  " + "\n  ".join(extra + children) + "\n)"

    def summary(self, *inputs: Any, depth: int | None = None, **named: Any) -> Summary:
        """Return a table of all parts: parameters and bytes, and, of example inputs, outputs and operations.

        Inputs, those of `forward`, are tensors, shapes as tuples of ints, or `st.spec(shape, dtype)`. Nothing
        is computed: a call in evaluation mode is traced. `depth` bounds how deep the printed table goes.
        Raises: CaptureError where forward asks for values that depend on an input; DTypeError.
        """
        return summary(self, inputs, named, depth)

    def _repr_html_(self) -> str:
        """Return the tree of modules for notebooks: a click opens what has parts."""
        return module_html(self)


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _indent(text: str) -> str:
    first, *rest = text.split("\n")
    return "\n".join([first, *("  " + line for line in rest)])


explain_methods(Module, "load_state_dict", "to", "register_parameter", "register_buffer")
