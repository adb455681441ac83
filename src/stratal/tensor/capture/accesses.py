"""What a captured run reads and writes of Python's state.

    read    := a place, and what stood there before the run: the capture fits as long as it stands there
    write   := a place or container that holds something else after the run: replays write it, too
    created := an object made by the run: neither

A capture itself changes nothing: whatever the run wrote is written back, and the replay that follows does it.
"""

from __future__ import annotations

import decimal
import gc
import io
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final

import numpy as np

from stratal.base.dims import Sym, undecided
from stratal.base.errors import CaptureError
from stratal.tensor.capture.containers import (
    CONTAINERS,
    Before,
    Call,
    Noted,
    behind,
    contents_of,
    parts_of,
    subscript,
    uncovered,
)
from stratal.tensor.capture.objects import (
    MUTABLE,
    fields_of,
    is_foreign_array,
    is_standard,
    ours,
    stateful,
    tables_of,
)
from stratal.tensor.capture.places import (
    MISSING,
    Cell,
    Element,
    Item,
    Measured,
    Place,
    Slot,
    Specials,
    Weakly,
)
from stratal.tensor.capture.plain import plain, same
from stratal.tensor.functions.random import Generator
from stratal.tensor.scalars import RuntimeScalar
from stratal.tensor.tensor import Tensor
from stratal.tensor.values.trace import Trace

Key = tuple[int, type, Any]


class Accesses:
    """The reads and writes of one run. `given` are the containers among the arguments, by id: a signature
    says what they hold. `inputs` are the tensors that stand for arrays of NumPy's among them.
    """

    def __init__(self, trace: Trace, given: dict[int, Any], inputs: dict[int, Tensor]) -> None:
        self.trace, self.given, self._inputs = trace, given, inputs
        self.reads: dict[Key, tuple[Place, Any]] = {}
        self.containers: dict[int, Before] = {}
        self.places: dict[Key, tuple[Place, Any]] = {}
        self.written: set[Key] = set()  # of those, the ones that the run wrote
        self.also: dict[int, Any] = {}  # containers among the arguments that were found elsewhere, too
        self.stateful: dict[int, Any] = {}  # objects of Stratal's classes that the run used
        self.carried: dict[int, Any] = {}  # objects that each replay changes by calls of their methods
        self.carried_state: list[tuple[Any, Any]] = []  # what those objects hold, and held before the run
        self.prelude: set[int] = set()  # of them, those changed ahead of the program, by id
        self.scalars: set[int] = set()  # holders of those that are inputs and were read, by id
        self.varying: dict[str, Place] = {}  # floats that must be inputs
        self.deferred: dict[int, Any] = {}  # that are changed only after the run
        self.missing: dict[tuple[int, str], Place] = {}  # attributes that objects of Stratal's do not have
        self.weak: dict[int, weakref.ref[Any]] = {}  # references to objects that were asked for, by their id
        self.names: dict[int, str] = {}  # of objects, by id
        self.arrays: dict[int, np.ndarray[Any, Any]] = {}  # given to Stratal's functions
        self.constructing: type | None = None  # the class of an object whose __init__ is about to run
        self._reshaping = False  # whether an argument that is an array is about to get another shape
        self._created: dict[int, Any] = {}
        self._before: dict[int, Any] = {}
        self._held: dict[int, tuple[Any, Any]] = {}  # what was read, and the tuple or list that held it
        self._owners: dict[int, Any] = {}  # of dicts of attributes, by id
        self._tracked: dict[int, bool] = {}  # containers, when the run first used them: by the collector
        self._classes: set[type] = set()  # of objects that were used
        self.texts: dict[str, Any] = {}
        self._young: set[int] = set()

    # -- objects ---------------------------------------------------------------------------------------------
    def created(self, value: Any) -> None:
        """Take note of an object made by the run."""
        self._created[id(value)] = value
        if self._reshaping:
            self._inputs[id(value)], self._reshaping = value, False

    def is_created(self, value: Any) -> bool:
        return id(value) in self._created

    def _made_inside(self, value: Any) -> bool:
        if isinstance(value, RuntimeScalar):  # it stands for a float from before the run
            return False
        return isinstance(value, Tensor) and value._trace is self.trace

    def is_made(self, value: Any) -> bool:
        """Return, after the run, whether it made an object, be it in code that is not observed."""
        if id(value) in self._created:
            return True
        if id(value) in self.given:
            return False
        if isinstance(value, type) and not value.__flags__ & MUTABLE:  # of the interpreter's own
            return False
        if id(value) in self._owners:
            return self.is_made(self._owners[id(value)])
        held = self._held.get(id(value))
        if isinstance(value, dict) and held is not None:  # may be tracked only since now
            return held[1] is not None and self.is_made(held[1])
        if self._tracked.get(id(value), gc.is_tracked(value)):
            if not self._young:
                self.refresh()
            return id(value) in self._young
        if id(value) in self.containers:
            return False
        _, holder = self._held.get(id(value), (None, value))
        return holder is not None and (holder is value or self.is_made(holder))

    def is_new(self, value: Any) -> bool:
        """Return, after the run, whether an object is known to be made by it."""
        if id(value) in self._owners:
            return self.is_new(self._owners[id(value)])
        if id(value) in self._created:
            return True
        if not self._young:
            self.refresh()
        return gc.is_tracked(value) and id(value) in self._young

    def refresh(self) -> None:
        """Look for what was made since the run began; the collector is paused."""
        self._young = {id(x) for k in (0, 1) for x in gc.get_objects(k)}

    def name(self, value: Any) -> str:
        """Return where an object was found first."""
        return self.names.get(id(value)) or f"a {type(value).__name__}"

    def foreign(self, value: Any, holder: Any = None) -> None:
        """Take note of a value found outside, in a tuple or list if given: iterators are refused where they
        are used up, arrays and containers among the arguments are known to be one with it.
        """
        if not plain(value):
            self._held.setdefault(id(value), (value, holder))
        if type(value) in _BOUND:
            value = value.__self__
        if issubclass(type(value), (Iterator, np.ndarray)):
            self._before[id(value)] = value
        elif id(value) in self.given and not plain(value):
            self.also[id(value)] = value

    def is_before(self, value: Any) -> bool:
        """Return whether an iterator or an array is known to be from before the run."""
        if id(value) not in self._before or id(value) in self._created:
            return False
        if isinstance(value, Iterator) and gc.is_tracked(value):
            self.refresh()  # code that is not observed may have made it
            return id(value) not in self._young
        return True

    def used_up(self, value: Any) -> None:
        """Refuse to go on with an iterator from before the run: what comes next depends on earlier calls."""
        if not self.is_before(value) or isinstance(value, np.ndarray):
            return
        if isinstance(value, io.IOBase):
            raise CaptureError(
                "capture: a compiled function cannot use a file from outside", got=type(value).__name__,
                hint="print() without file= is repeated by each call; or return what is to be written",
            )  # fmt: skip
        raise CaptureError(
            "capture: a compiled function cannot take the next item of an iterator from outside",
            got=type(value).__name__,
            hint="take it outside and pass it as an argument; or st.frozen(next, it), taken once",
        )

    def not_lock(self, value: Any) -> None:
        """Refuse to take a lock from before the run: it would not be held while a replay runs."""
        if isinstance(value, _LOCKS) and id(value) not in self._created:
            raise CaptureError(
                "capture: a compiled function cannot take a lock: replays would not hold it",
                got=self.name(value),
                hint="take it around the call: with lock: step(..)",
            )

    def weakly(self, reference: weakref.ref[Any]) -> None:
        """Note that the run asks a weak reference for its object: guards must not keep that alive."""
        self.read(Measured(reference, _dead, "whether a weakly held object is gone"))
        if not self.is_created(reference()):
            self.weak[id(reference())] = reference

    def guarded(self) -> Iterator[tuple[Place, Any]]:
        """Yield what was read, and what stood there."""
        for place, value in self.reads.values():
            if not self.weak.keys().isdisjoint(map(id, value if isinstance(value, tuple) else (value,))):
                raise CaptureError(
                    "capture: an object is asked of a weak reference, and reached in another way",
                    got=f"{place.name} and a weakref.ref",
                    hint="use one of the ways: whether it is gone may depend on what is captured",
                )
            weak = self.weak.get(id(place.holder))
            yield (place if weak is None else Weakly(weak, (type(place), place.key), place.name)), value

    # -- reads -----------------------------------------------------------------------------------------------
    def read(self, place: Place) -> None:
        """Note that the run reads a place."""
        key = place.identity()
        if isinstance(place.holder, BaseException):  # code that is not observed may have raised it
            self.refresh()
            if self.is_new(place.holder):
                return
        if id(place.holder) in self.carried:
            self._read_carried(place, place.read())
        if key in self.reads:
            return
        value, before = place.read(), self.before(place)
        if id(place.holder) not in self.given and same(value, before):
            self.foreign(value)
        if isinstance(value, RuntimeScalar):  # guarded as a float
            self.scalars.add(id(place.holder))
            return
        if not plain(value):
            self.names.setdefault(id(value), place.name)
        if same(value, before) and not self._made_inside(value):
            self.reads[key] = place, value
        elif id(place.holder) in self.carried:  # what stands there now was made of what stood there
            self.reads[key] = place, before

    def _read_carried(self, place: Place, value: Any) -> None:
        """Note a read of what a carried call has changed, or will at another time: all that it knew decides;
        a number that the call changes ahead of the program is an input of that.
        """
        if not plain(value):
            return
        if type(value) is float and id(place.holder) in self.prelude:
            self.varying[place.name] = place
            return
        for fields, copy in self.carried_state:
            key = (id(fields), Measured, contents_of)
            self.reads[key] = Measured(fields, contents_of, f"what {place.name} stands in"), contents_of(copy)

    def before(self, place: Place) -> Any:
        """Return what stood at a place before the run."""
        known = self.containers.get(id(place.holder))
        if known is not None and isinstance(place, Item):
            return known.copy.get(place.key, MISSING)
        if known is not None and isinstance(place, Element):
            try:
                return known.copy[place.key]
            except IndexError:
                return MISSING
        if isinstance(place, Measured):
            return place.read()
        key = place.identity()
        if key not in self.places:
            self.places[key] = place, place.read()
        return self.places[key][1]

    def is_text_of_values(self, value: Any) -> bool:
        """Return whether text, be it in a tuple, is made of tensors: it is known after the run."""
        if isinstance(value, (tuple, frozenset)):
            return bool(self.texts) and any(map(self.is_text_of_values, value))
        return isinstance(value, str) and any(standing in value for standing in self.texts)

    def reads_text(self, value: Any) -> None:
        """Refuse that the run looks into such text."""
        if self.is_text_of_values(value):
            raise CaptureError(
                "capture: Python looks into text that is made of a tensor's value", got="str",
                hint="print, return or store it as it is; or return the tensor and make text of it outside",
            )  # fmt: skip

    def shows_plainly(self, value: Any) -> None:
        """Refuse that text of a tensor is padded or cut before it is known."""
        if isinstance(value, Tensor) and (value._trace is self.trace or self.trace.reads(value)):
            raise CaptureError(
                "capture: Python looks into text that is made of a tensor's value", got="str",
                hint="format numbers: f'{x.sum():8.3f}'",
            )  # fmt: skip

    def number(self, value: Any) -> None:
        """Refuse a float that became an input where Python needs the number itself: it is frozen then."""
        if isinstance(value, RuntimeScalar):
            raise CaptureError("capture: Python needs a number that varies", got=str(value.type))

    def key(self, value: Any) -> None:
        """Refuse a number that varies, or a symbolic size, where Python asks which one it is."""
        self.number(value)
        self.reads_text(value)
        if isinstance(value, Sym):
            raise undecided(value, "capture: Python needs to know a size")
        for part in value if isinstance(value, (tuple, frozenset)) else ():
            self.key(part)
        self.use(value)

    def text(self, value: Any, depth: int = 4) -> None:
        """Refuse those in a value of which text is made."""
        self.key(value) if not isinstance(value, (str, tuple, frozenset)) else None
        for part in parts_of(value) if depth else ():
            self.text(part, depth - 1)

    def kind(self, value: Any) -> None:
        """Note that the run asks for the class of an object; users may give it another one."""
        self.key(value)
        self.not_array(value)
        fixed = not type(value).__flags__ & MUTABLE or stateful(value) or isinstance(value, (type, Tensor))
        if not fixed and id(value) not in self._created and not plain(value):
            self.read(Measured(value, type, f"the class of {self.name(value)}"))
        self.bases(type(value))

    def bases(self, kind: type) -> None:
        """Note that the run looks through a class and its bases."""
        if kind.__flags__ & MUTABLE and not ours(kind) and not self.is_created(kind):
            self.read(Measured(kind, _MRO, f"the bases of {kind.__name__}"))

    def item(self, holder: Any, key: Any) -> None:
        """Note that the run reads `holder[key]`."""
        if (isinstance(holder, dict) and type(holder).__getitem__ is dict.__getitem__) or (
            ours(type(holder)) and isinstance(holder, dict)
        ):
            if self.touch(holder):
                self.read(Item(holder, key, f"{self.name(holder)}{subscript(key)}"))
        elif isinstance(holder, list) and type(key) is int:
            if self.touch(holder):
                self.read(Element(holder, key, f"{self.name(holder)}[{key}]"))
        elif isinstance(holder, types.MappingProxyType):
            self.item(behind(holder), key)
        elif isinstance(holder, tuple):
            for part in () if self.is_created(holder) or id(holder) in self.given else holder:
                self.foreign(part, holder)
        else:
            self.contents(holder)

    def contents(self, holder: Any, handed_on: bool = False) -> None:
        """Note that the run reads all that a container holds, and all that containers in it hold.

        Arrays that are arguments may be among it where it is only `handed_on`.
        """
        self._contents(holder, set(self._inputs) - {id(holder)} if handed_on else set())

    def items(self, holder: Any) -> None:
        """Note that the run is handed what a container holds; what that holds, it reads on its own."""
        self._contents(holder, set(), deep=False)

    def _contents(self, holder: Any, seen: set[int], deep: bool = True) -> None:
        if id(holder) in seen:
            return
        self.used_up(holder)
        self.not_array(holder)
        self.reads_text(holder)
        if isinstance(holder, (str, bytes, int, float, Tensor)):
            return
        self._outside(holder)
        if type(holder) is decimal.Decimal:
            self.read(Measured(decimal, _precision, "the context of decimal numbers"))
        seen.add(id(holder))
        self.use(holder)
        holder = uncovered(holder)
        if isinstance(holder, BaseException) and not self.is_created(holder):
            self.read(Slot(holder, "args", f"the arguments of {self.name(holder)}"))
        if isinstance(holder, CONTAINERS) and self.touch(holder):
            self.reads_contents(self.containers[id(holder)])
        for part in parts_of(holder):
            if id(holder) not in self.given:
                self.foreign(part, holder)
            if deep:
                self._contents(part, seen)

    def _outside(self, value: Any) -> None:
        """Refuse what no guard can watch: a loader's batches, another library's array."""
        kind = type(value)
        if any(c.__module__ == "stratal.data.loader" for c in kind.__mro__):
            raise CaptureError(
                "capture: a compiled function cannot draw batches of a loader: each epoch has its own order",
                got=kind.__name__,
                hint="loop over it outside and pass each batch as an argument",
            )
        if is_foreign_array(value):
            raise CaptureError(
                "capture: what another library's array holds cannot be watched",
                got=f"{self.name(value)}, a {kind.__module__}.{kind.__qualname__}",
                hint="pass st.tensor(x), or st.from_dlpack(x), as an argument",
            )

    def reads_contents(self, before: Before) -> None:
        """Guard what a container held."""
        key = (id(before.holder), Measured, contents_of)
        if key not in self.reads and id(before.holder) not in self.given:
            place = Measured(before.holder, contents_of, f"what {before.name} holds")
            self.reads[key] = place, contents_of(before.copy)

    def is_array(self, value: Any) -> bool:
        """Return whether a value is an array of NumPy's, or stands for one that is an argument."""
        return id(value) in self._inputs or isinstance(value, np.ndarray)

    def not_array(self, value: Any) -> None:
        """Refuse what NumPy would do with an array that is an argument: a tensor stands for it."""
        if id(value) in self._inputs:
            raise CaptureError(
                "capture: NumPy computes with an array that is an argument", got=self.name(value),
                hint="compute with st.tensor(array), which is an input of the program",
            )  # fmt: skip

    def passes(self, value: Any) -> None:
        """Note that a value is given to one of Stratal's functions: an array becomes an input, or is read."""
        if isinstance(value, np.ndarray):
            self._passes_array(value)
        elif type(value) in (list, tuple) and any(map(self.is_array, value)):
            if type(value) is list and self.touch(value):
                self.reads_contents(self.containers[id(value)])
            for part in value:
                self.passes(part)
        elif id(value) not in self._inputs:
            self.contents(value)

    def reshapes(self, function: str, args: Sequence[Any]) -> bool:
        """Return whether a call gives an argument that is an array another shape, as it gives a tensor."""
        self._reshaping = function in RESHAPING and bool(args) and id(args[0]) in self._inputs
        return self._reshaping

    def _passes_array(self, array: np.ndarray[Any, Any]) -> None:
        if self.touch(array):
            self.arrays[id(array)] = array

    def reads_arrays(self, inputs: Iterable[int]) -> None:
        """Guard what arrays hold that were given to functions and became no inputs."""
        for key in self.arrays.keys() - set(inputs):
            self.reads_contents(self.containers[key])

    def size(self, holder: Any) -> None:
        """Note that the run asks how much a container holds."""
        self.reads_text(holder)
        self.use(holder)
        holder = uncovered(holder)
        if isinstance(holder, CONTAINERS) and self.touch(holder):
            key = (id(holder), Measured, len)
            if key not in self.reads:
                place = Measured(holder, len, f"the length of {self.name(holder)}")
                self.reads[key] = place, len(self.containers[id(holder)].copy)

    def member(self, holder: Any, value: Any) -> None:
        """Note that the run asks whether a container has a key or an item."""
        if isinstance(holder, dict) and plain(value):
            if self.touch(holder):
                self.read(Item(holder, value, f"{self.name(holder)}{subscript(value)}"))
        else:
            self.contents(holder)

    def use(self, value: Any) -> None:
        """Note that the run uses an object: Python may look up special methods in its class, and what
        Stratal's own functions read of it is found by a walk.
        """
        kind = type(value)
        if not kind.__flags__ & MUTABLE:
            return
        walked = stateful(value)
        fixed = walked or ours(kind) or is_standard(kind) or isinstance(value, (type, Tensor))
        if not (fixed or plain(value) or id(value) in self._created or id(value) in self.given):
            self.read(Measured(value, type, f"the class of {self.name(value)}"))
        if kind not in self._classes:
            self._classes.add(kind)
            for c in kind.__mro__:
                if c.__flags__ & MUTABLE and not (ours(c) or is_standard(c) or self.is_created(c)):
                    self.read(Specials(c))
        if walked and id(value) not in self._created and id(value) not in self.stateful:
            fields = fields_of(value) or {}
            if id(fields) not in self.containers and any(map(self._made_inside, fields.values())):
                self.created(value)
            else:
                self.stateful[id(value)] = value
                if type(value) is Generator:
                    self._touch_state(value)
                elif isinstance(groups := getattr(value, "param_groups", None), list):
                    self._touch(groups, f"the groups of {self.name(value)}", False)
                elif tables_of(value):
                    for module in value.modules():  # Stratal's functions may write into them
                        self._touch_state(module)

    # -- writes ----------------------------------------------------------------------------------------------
    def touch(self, holder: Any) -> bool:
        """Remember what a container or an object holds, before it may change; return whether it is from
        before the run and no argument.
        """
        fields = None if isinstance(holder, CONTAINERS) else fields_of(holder)
        if fields is not None:
            self._owners[id(fields)] = holder
        if id(holder) in self._created:
            return False
        if not isinstance(holder, CONTAINERS):
            return fields is not None and self._touch(fields, f"the attributes of {self.name(holder)}", True)
        return self._touch(holder, self.name(holder), False)

    def _holds_made(self, holder: Any) -> bool:
        """Return whether a container was made by the run: it holds what that made."""
        parts = parts_of(holder)
        if any(map(self._made_inside, parts)):
            return True
        if not any(isinstance(part, RuntimeScalar) for part in parts):
            return False
        self.refresh()  # such stand in places from before the run, too
        return self.is_new(holder)

    def touch_table(self, table: dict[str, Any], owner: Any) -> None:
        """Remember what a module's table holds, of which each entry is written by itself."""
        self._touch(table, f"a table of {self.name(owner)}", True)

    def _touch_state(self, owner: Any) -> None:
        """Remember what an object of Stratal's holds, and the tables in it."""
        fields = fields_of(owner)
        if fields is None:
            return
        self._owners[id(fields)] = owner
        self._touch(fields, f"the attributes of {self.name(owner)}", True)
        tables = tables_of(owner)
        for table in fields.values():
            if isinstance(table, (dict, list)):
                entries = any(table is t for t in tables)  # each is written by itself
                self._touch(table, f"a table of {self.name(owner)}", entries)

    def _touch(self, holder: Any, name: str, attributes: bool) -> bool:
        if id(holder) in self.containers:
            return id(holder) not in self.given
        self._tracked[id(holder)] = gc.is_tracked(holder)
        if id(holder) not in self.given and self._holds_made(holder):
            self.created(holder)
            return False
        self.containers[id(holder)] = Before(holder, name, attributes)
        return id(holder) not in self.given

    def writes(self, holder: Any, method: str, args: tuple[Any, ...]) -> None:
        """Note a call that changes a container, whatever it holds."""
        if isinstance(holder, CONTAINERS):
            self.touch(holder)
            if stateful(holder):
                self._touch_state(holder)
            if id(holder) in self.containers:
                self.containers[id(holder)].calls.append(Call(method, args))

    def extends(self, holder: Any, method: str) -> Noted:
        """Note, after it, a call that puts what an iterator yields into a container."""
        self.touch(holder)
        before = self.containers.get(id(holder))
        return False if before is None else before.extends(method)

    def num_writes(self) -> int:
        """Return how many places and containers hold something else than before the run."""
        places = sum(place.read() is not value for place, value in self.places.values())
        return places + sum(before.changed() + len(before.calls) for before in self.containers.values())

    def writes_place(self, place: Place) -> Callable[[], None]:
        """Note that the run is about to write a place; return what notes that it has."""
        self.before(place)
        return lambda: self.written.add(place.identity())

    def writes_key(self, holders: Sequence[Any], key: Any) -> None:
        """Note that the run wrote an entry of the dict of those that has it."""
        for holder in holders:
            if id(holder) in self.containers and key in holder:
                self.containers[id(holder)].written[key] = None

    def cell(self, cell: Any, name: str) -> None:
        """Note that the run reads a variable of an enclosing function."""
        if id(cell) not in self._created:
            self.read(Cell(cell, None, name))

    def writes_cell(self, cell: Any, name: str) -> Noted:
        return False if id(cell) in self._created else self.writes_place(Cell(cell, None, name))

    def forget(self) -> None:
        """Let go of all that the run made."""
        self.containers.clear()
        self.places.clear()
        self.also.clear()
        self.stateful.clear()
        self.arrays.clear()
        self.missing.clear()
        self.weak.clear()
        self.carried_state.clear()
        self._created.clear()
        self._before.clear()
        self._held.clear()
        self._owners.clear()
        self._young.clear()
        self._classes.clear()
        self.given = {}

    # -- the end ---------------------------------------------------------------------------------------------
    def restore(self) -> None:
        """Let everything be as it was before the run."""
        for before in self.containers.values():
            if before.changed():
                before.restore()
        for place, value in self.places.values():
            if not same(place.read(), value):
                place.restore(value)


RESHAPING: Final = frozenset({"reshape", "ravel", "flatten"})  # of arrays, alike of tensors
_MRO: Final = attrgetter("__mro__")
_LOCKS: Final = (type(threading.Lock()), type(threading.RLock()))
_BOUND: Final = (types.BuiltinFunctionType, types.MethodWrapperType)


def _dead(reference: weakref.ref[Any]) -> bool:
    return reference() is None


def _precision(module: Any) -> tuple[Any, ...]:
    """Return what the results of decimal arithmetic depend on."""
    c = module.getcontext()
    return (c.prec, c.rounding, c.Emin, c.Emax, c.capitals, c.clamp, *(t for t, on in c.traps.items() if on))
