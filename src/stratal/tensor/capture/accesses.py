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
import itertools
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final

import numpy as np

from stratal.base.dims import Sym, undecided
from stratal.base.source import PACKAGE
from stratal.base.types import TensorType
from stratal.tensor.capture import refusals
from stratal.tensor.capture.containers import (
    CONTAINERS,
    Before,
    Call,
    Noted,
    behind,
    contents_of,
    origin_of,
    parts_of,
    size_in,
    subscript,
    uncovered,
)
from stratal.tensor.capture.locations import (
    MISSING,
    Element,
    Item,
    Location,
    Measured,
    Slot,
    Specials,
    Weakly,
)
from stratal.tensor.capture.natives import unwatched
from stratal.tensor.capture.objects import (
    MUTABLE,
    fields_of,
    is_foreign_array,
    is_standard,
    ours,
    stateful,
    tables_of,
)
from stratal.tensor.capture.origins import Made
from stratal.tensor.capture.plain import plain, same
from stratal.tensor.functions.random import Generator
from stratal.tensor.scalars import RuntimeScalar
from stratal.tensor.tensor import Tensor
from stratal.tensor.values.trace import Trace

Key = tuple[int, type, Any]

_OF_LOADERS: Final = {f"stratal.data.{name}" for name in ("loader", "datasets", "samplers", "pipeline")}


class Accesses:
    """The reads and writes of one run. `given` are the containers among the arguments, by id: a signature
    says what they hold. `inputs` are the tensors that stand for arrays of NumPy's among them.
    """

    def __init__(self, trace: Trace, given: dict[int, Any], inputs: dict[int, Tensor]) -> None:
        self.trace, self.given, self._inputs = trace, given, inputs
        self.reads: dict[Key, tuple[Location, Any]] = {}
        self.containers: dict[int, Before] = {}
        self.made = Made(trace, given, self.containers)
        self.locations: dict[Key, tuple[Location, Any]] = {}
        self.written: set[Key] = set()  # of those, the ones that the run wrote
        self.stateful: dict[int, Any] = {}  # objects of Stratal's classes that the run used
        self.replayed: dict[int, Any] = {}  # objects that each replay changes by calls of their methods
        self.replayed_state: list[tuple[Any, Any]] = []  # what those objects hold, and held before the run
        self.prelude: set[int] = set()  # of them, those changed ahead of the program, by id
        self.scalars: set[int] = set()  # holders of those that are inputs and were read, by id
        self.varying: dict[str, Location] = {}  # floats that must be inputs
        self.deferred: dict[int, Any] = {}  # that are changed only after the run
        self.missing: dict[tuple[int, str], Location] = {}  # attributes that objects of Stratal's do not have
        self.weak: dict[int, weakref.ref[Any]] = {}  # references to objects that were asked for, by their id
        self.names: dict[int, str] = {}  # of objects, by id
        self.arrays: dict[int, np.ndarray[Any, Any]] = {}  # given to Stratal's functions
        self.origins_written: set[int] = set()  # of arrays of which items were assigned, by id
        self._ahead: set[int] = set()  # iterators that are being looked at, by id
        self._yielding: dict[int, tuple[types.FrameType, list[Callable[[Any], None]]]] = {}  # by id
        self.caching: set[types.CodeType] = set()  # functions whose results `functools.lru_cache` keeps
        self.constructing: type | None = None  # the class of an object whose __init__ is about to run
        self._reshaping = False  # whether an argument that is an array is about to get another shape
        self._classes: set[type] = set()  # of objects that were used
        self.texts: dict[str, Any] = {}

    # -- objects ---------------------------------------------------------------------------------------------
    def created(self, value: Any) -> None:
        """Take note of an object made by the run."""
        self.made.add(value)
        if self.trace.symbols:
            self.hashes(value)
        if self._reshaping:
            self._inputs[id(value)], self._reshaping = value, False

    def computed(self, value: Any) -> None:
        """Take note of what NumPy gave: an array that shows no memory from before is made by the run."""
        origin = origin_of(value) if isinstance(value, np.ndarray) else None
        if origin is None or origin.base is not None or id(origin) in self.containers:
            return
        if not self.made.is_before(origin):
            self.made.add(origin)
            self.made.add(value)

    def name(self, value: Any) -> str:
        """Return where an object was found first."""
        return self.names.get(id(value)) or f"a {type(value).__name__}"

    def used_up(self, value: Any) -> None:
        """Refuse to go on with an iterator from before the run: what comes next depends on earlier calls."""
        if not self.made.is_before(value) or isinstance(value, np.ndarray):
            return
        if isinstance(value, io.IOBase):
            raise refusals.FILE(type(value).__name__)
        raise refusals.ITERATOR(type(value).__name__)

    def not_lock(self, value: Any) -> None:
        """Refuse to take a lock from before the run: it would not be held while a replay runs."""
        if isinstance(value, _LOCKS) and value not in self.made:
            raise refusals.LOCK(self.name(value))

    def weakly(self, reference: weakref.ref[Any]) -> None:
        """Note that the run may ask a weak reference for its object: guards must not keep that alive."""
        self.read(Measured(reference, _dead, "whether a weakly held object is gone"))
        target = _REFERENT(reference)
        if target is not None and target not in self.made:
            self.weak[id(target)] = reference

    def guarded(self) -> Iterator[tuple[Location, Any]]:
        """Yield what was read, and what stood there."""
        for reference in self.weak.values():
            target = _REFERENT(reference)
            if id(target) in self.stateful or (isinstance(target, Tensor) and self.trace.reads(target)):
                raise refusals.WEAK_STATE(type(target).__name__)
        for location, value in self.reads.values():
            if not self.weak.keys().isdisjoint(map(id, value if isinstance(value, tuple) else (value,))):
                raise refusals.WEAK_AND_STRONG(f"{location.name} and a weakref.ref")
            weak = self.weak.get(id(location.holder))
            if weak is not None:
                location = Weakly(weak, (type(location), location.key), location.name)
            yield location, value

    # -- reads -----------------------------------------------------------------------------------------------
    def read(self, location: Location) -> None:
        """Note that the run reads a place."""
        key = location.identity()
        if isinstance(location.holder, BaseException):  # code that is not observed may have raised it
            self.made.refresh()
            if self.made.is_new(location.holder):
                return
        if id(location.holder) in self.replayed:
            self._read_replayed(location, location.read())
        if key in self.reads:
            return
        value, before = location.read(), self.before(location)
        if id(location.holder) not in self.given and same(value, before):
            self.made.found(value)
        if type(value) is RuntimeScalar:  # guarded as a float
            self.scalars.add(id(location.holder))
            return
        if not plain(value):
            self.names.setdefault(id(value), location.name)
        if same(value, before) and not self.made.is_value(value):
            self.reads[key] = location, value
        elif id(location.holder) in self.replayed:  # what stands there now was made of what stood there
            self.reads[key] = location, before

    def _read_replayed(self, location: Location, value: Any) -> None:
        """Note a read of what a carried call has changed, or will at another time: all that it knew decides;
        a number that the call changes ahead of the program is an input of that.
        """
        if not plain(value):
            return
        if type(value) is float and id(location.holder) in self.prelude:
            self.varying[location.name] = location
            return
        for fields, copy in self.replayed_state:
            key = (id(fields), Measured, contents_of)
            measured = Measured(fields, contents_of, f"what {location.name} stands in")
            self.reads[key] = measured, contents_of(copy)

    def before(self, location: Location) -> Any:
        """Return what stood at a place before the run."""
        known = self.containers.get(id(location.holder))
        if known is not None and isinstance(location, Item):
            return known.copy.get(location.key, MISSING)
        if known is not None and isinstance(location, Element):
            try:
                return known.copy[location.key]
            except IndexError:
                return MISSING
        if isinstance(location, Measured):
            return location.read()
        key = location.identity()
        if key not in self.locations:
            self.locations[key] = location, location.read()
        return self.locations[key][1]

    def is_text_of_values(self, value: Any) -> bool:
        """Return whether text, be it in a tuple, is made of tensors: it is known after the run."""
        if isinstance(value, (tuple, frozenset)):
            return bool(self.texts) and any(map(self.is_text_of_values, value))
        return isinstance(value, str) and any(prior in value for prior in self.texts)

    def reads_text(self, value: Any) -> None:
        """Refuse that the run looks into such text."""
        if self.is_text_of_values(value):
            raise refusals.TEXT("str")
        if self.trace.symbols:
            _ask(self._size_shown(value))

    def known(self, value: Any) -> None:
        """Ask for a number that varies, and for sizes that an immutable value holds or that text shows."""
        self.number(value)
        _ask(size_in(value))
        if self.trace.symbols:
            _ask(self._size_shown(value))

    def known_within(self, value: Any, depth: int = 4) -> None:
        """Ask for the symbolic sizes and weakly held objects in a value, be it a mutable container."""
        self.known(value)
        if isinstance(value, weakref.ref):
            self.weakly(value)
        for part in parts_of(value) if depth else ():
            self.known_within(part, depth - 1)

    def _size_shown(self, value: Any) -> Sym | None:
        if isinstance(value, (tuple, frozenset)):
            shown = map(self._size_shown, parts_of(value))
            return next((size for size in shown if size is not None), None)
        if not isinstance(value, str):
            return None
        for prior in self.texts:  # names its tensor's type
            value = value.replace(prior, "")
        return next((Sym.named(name) for name in self.trace.symbols if name in value), None)

    def shows_plainly(self, value: Any) -> None:
        """Refuse that text of a tensor is padded or cut before it is known."""
        if isinstance(value, Tensor) and (value._trace is self.trace or self.trace.reads(value)):
            raise refusals.PADDED_TEXT("str")

    def number(self, value: Any) -> None:
        """Ask for a float that became an input where Python needs the number itself: it is frozen then."""
        if type(value) is RuntimeScalar:
            value.ask()

    def key(self, value: Any) -> None:
        """Refuse a number that varies, or a symbolic size, where Python asks which one it is."""
        self.number(value)
        self.reads_text(value)
        _ask(size_in(value))
        for part in value if isinstance(value, (tuple, frozenset)) else ():
            self.key(part)
        self.use(value)

    def hashes(self, value: Any) -> None:
        """Ask for the symbolic sizes that are keys of a dict, or in a set: Python looks for them by hash."""
        for key in value if isinstance(value, (dict, set)) else ():
            _ask(size_in(key))

    def text(self, value: Any, depth: int = 4) -> None:
        """Refuse those in a value of which text is made."""
        self.key(value) if not isinstance(value, (str, tuple, frozenset)) else None
        for part in parts_of(value) if depth else ():
            self.text(part, depth - 1)

    def kind(self, value: Any) -> None:
        """Note that the run asks for the class of an object; users may give it another one."""
        self.use(value) if isinstance(value, (tuple, frozenset)) else self.key(value)
        self.not_array(value)
        self._reads_class(value)
        self.bases(type(value))

    def _reads_class(self, value: Any) -> None:
        fixed = not type(value).__flags__ & MUTABLE or ours(type(value)) or stateful(value)
        if fixed or isinstance(value, (type, Tensor)) or plain(value):
            return
        if value not in self.made and id(value) not in self.given:  # those a signature has
            self.read(Measured(value, type, f"the class of {self.name(value)}"))

    def bases(self, kind: type) -> None:
        """Note that the run looks through a class and its bases."""
        if kind.__flags__ & MUTABLE and not ours(kind) and kind not in self.made:
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
            for part in () if holder in self.made or id(holder) in self.given else holder:
                self.made.found(part, holder)
        else:
            self.contents(holder)

    def contents(self, holder: Any, handed_on: bool = False) -> None:
        """Note that the run reads all that a container holds, and all that containers in it hold.

        Arrays that are arguments may be among it where it is only `handed_on`.
        """
        self._contents(holder, set(self._inputs) - {id(holder)} if handed_on else set(), parts=not handed_on)

    def _handed_on(self, value: Any) -> None:
        self._contents(value, set(self._inputs), parts=False)

    def stored(self, value: Any) -> None:
        """Note that a value is put into an object, which does not look into it."""
        self._contents(value, set(self._inputs) - {id(value)}, whole=False, parts=False)

    def items(self, holder: Any) -> None:
        """Note that the run is handed what a container holds; what that holds, it reads on its own."""
        self._contents(holder, set(), deep=False)

    def _contents(
        self, holder: Any, seen: set[int], deep: bool = True, whole: bool = True, parts: bool = True
    ) -> None:
        """Note a read; `whole` and `parts` say whether what is no container itself, or in one, is, too."""
        if id(holder) in seen:
            return
        if whole:
            self.watched(holder)
        self.used_up(holder)
        self.not_array(holder)
        self.reads_text(holder)
        if isinstance(holder, (str, bytes, int, float, Tensor)):
            return
        if isinstance(holder, TensorType):
            _ask(size_in(holder))
        self._outside(holder)
        if type(holder) is decimal.Decimal:
            self.read(Measured(decimal, _precision, "the context of decimal numbers"))
        if isinstance(holder, weakref.ref) and whole:  # which can be called, compared and printed
            self.weakly(holder)
        seen.add(id(holder))
        self.use(holder)
        holder = uncovered(holder)
        if isinstance(holder, BaseException) and holder not in self.made:
            self.read(Slot(holder, "args", f"the arguments of {self.name(holder)}"))
        if isinstance(holder, types.SimpleNamespace):  # compares what it holds, without Python code
            holder = fields_of(holder) if self.touch(holder) else None
        if isinstance(holder, CONTAINERS) and self.touch(holder):
            self.reads_contents(self.containers[id(holder)])
        for part in parts_of(holder):
            if id(holder) not in self.given:
                self.made.found(part, holder)
            if deep:
                self._contents(part, seen, whole=parts, parts=parts)
        if deep:  # what a function is given first is handed on
            handed_on = not parts or isinstance(holder, (map, itertools.starmap))
            self.ahead(holder, self._handed_on if handed_on else self.contents)

    def ahead(self, iterator: Any, note: Callable[[Any], None]) -> None:
        """Note what an iterator that the run made will yield to code that is not observed."""
        if isinstance(iterator, types.GeneratorType):
            frame = iterator.gi_frame
            if frame is not None and frame.f_code.co_filename.startswith(PACKAGE):  # of a module's parts
                for owner in [x for x in frame.f_locals.values() if tables_of(x)]:
                    for module in owner.modules():
                        note(module)
            elif frame is not None:
                self._yielding.setdefault(id(frame), (frame, []))[1].append(note)
        elif issubclass(type(iterator), Iterator) and id(iterator) not in self._ahead:
            self._ahead.add(id(iterator))  # it may hold itself
            for source in gc.get_referents(iterator):
                for part in source if type(source) is tuple else (source, *parts_of(uncovered(source))):
                    self.ahead(part, note) if issubclass(type(part), Iterator) else note(part)
            self._ahead.discard(id(iterator))

    def yields(self, frame: types.FrameType, value: Any) -> None:
        """Note what a generator is about to yield."""
        for note in self._yielding.get(id(frame), (frame, ()))[1]:
            note(value)

    def settings_of_numpy(self) -> None:
        """Guard what NumPy's functions depend on beside their arguments."""
        self.read(Measured(np, _settings_of_numpy, "NumPy's settings"))

    def watched(self, value: Any) -> None:
        """Refuse to look into an object from before the run of a class written in C that is not known."""
        if isinstance(value, (np.ndarray, np.generic)):
            self.settings_of_numpy()
        if self.unwatched(value):
            raise refusals.UNWATCHED(f"{self.name(value)}, a {type(value).__qualname__}")

    def unwatched(self, value: Any) -> bool:
        """Return whether what an object from before the run holds is known to nobody."""
        if not unwatched(value) or value in self.made:
            return False
        self.made.refresh()  # code that is not observed may have made it
        return not self.made.is_new(value)

    def _outside(self, value: Any) -> None:
        """Refuse what no guard can watch: a loader's batches, another library's array."""
        kind = type(value)
        if any(c.__module__ in _OF_LOADERS for c in kind.__mro__):
            raise refusals.LOADER(kind.__name__)
        if is_foreign_array(value):
            raise refusals.FOREIGN_ARRAY(f"{self.name(value)}, a {kind.__module__}.{kind.__qualname__}")

    def reads_contents(self, before: Before) -> None:
        """Guard what a container held."""
        key = (id(before.holder), Measured, contents_of)
        if key not in self.reads and id(before.holder) not in self.given:
            for x in before.contents:
                self.number(x)
            location = Measured(before.holder, contents_of, f"what {before.name} holds")
            self.reads[key] = location, before.contents

    def is_array(self, value: Any) -> bool:
        """Return whether a value is an array of NumPy's, or stands for one that is an argument."""
        return id(value) in self._inputs or isinstance(value, np.ndarray)

    def not_array(self, value: Any) -> None:
        """Refuse what NumPy would do with an array that is an argument: a tensor stands for it."""
        if id(value) in self._inputs:
            raise refusals.ARRAY(self.name(value))

    def passes(self, value: Any) -> None:
        """Note that a value is given to one of Stratal's functions: an array becomes an input, or is read."""
        if isinstance(value, np.ndarray):
            if self.touch(value):
                self.arrays[id(value)] = value
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

    def rewritten(self, array: np.ndarray[Any, Any]) -> bool:
        """Return whether an array holds what the run wrote; what it held before is guarded then."""
        before = self.containers[id(array)]
        found = id(origin_of(array)) in self.origins_written or before.changed()
        if found:
            self.reads_contents(before)
        return found

    def reads_arrays(self, inputs: Iterable[int]) -> None:
        """Guard what arrays hold that were given to functions and became no inputs."""
        for key in self.arrays.keys() - set(inputs):
            self.reads_contents(self.containers[key])

    def size(self, holder: Any) -> None:
        """Note that the run asks how much a container holds."""
        if any(hasattr(type(holder), name) for name in ("__len__", "__bool__")):
            self.watched(holder)
        self.reads_text(holder)
        self.use(holder)
        holder = uncovered(holder)
        if isinstance(holder, CONTAINERS) and self.touch(holder):
            key = (id(holder), Measured, len)
            if key not in self.reads:
                location = Measured(holder, len, f"the length of {self.name(holder)}")
                self.reads[key] = location, len(self.containers[id(holder)].copy)

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
        if not is_standard(kind):
            self._reads_class(value)
        if kind not in self._classes:
            self._classes.add(kind)
            for c in kind.__mro__:
                if c.__flags__ & MUTABLE and not (ours(c) or is_standard(c) or c in self.made):
                    self.read(Specials(c))
        if stateful(value) and value not in self.made and id(value) not in self.stateful:
            fields = fields_of(value) or {}
            if id(fields) not in self.containers and any(map(self.made.is_value, fields.values())):
                self.created(value)
            else:
                self.stateful[id(value)] = value
                if type(value) is Generator:
                    self._touch_state(value)
                elif isinstance(groups := getattr(value, "param_groups", None), list):
                    self._touch(groups, f"the groups of {self.name(value)}", False)
                elif isinstance(overflows := getattr(value, "_overflows", None), dict):  # of a GradScaler
                    self._touch(overflows, f"the overflows of {self.name(value)}", False)
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
            self.made.owners[id(fields)] = holder
        if holder in self.made:
            return False
        if not isinstance(holder, CONTAINERS):
            return fields is not None and self._touch(fields, f"the attributes of {self.name(holder)}", True)
        return self._touch(holder, self.name(holder), False)

    def touch_tables(self, owner: Any) -> None:
        """Remember what a module's tables hold, of which each entry is written by itself."""
        for table in tables_of(owner):
            self._touch(table, f"a table of {self.name(owner)}", True)

    def _touch_state(self, owner: Any) -> None:
        """Remember what an object of Stratal's holds, and the tables and lists in it."""
        fields = fields_of(owner)
        if fields is not None:
            self.made.owners[id(fields)] = owner
            self._touch(fields, f"the attributes of {self.name(owner)}", True)
            self.touch_tables(owner)
            for table in fields.values():
                if isinstance(table, (dict, list)):
                    self._touch(table, f"a table of {self.name(owner)}", False)

    def _touch(self, holder: Any, name: str, attributes: bool) -> bool:
        if id(holder) in self.containers:
            return id(holder) not in self.given
        self.made.tracked[id(holder)] = gc.is_tracked(holder)
        if id(holder) not in self.given and self.made.holds_made(holder, parts_of(holder)):
            self.created(holder)
            return False
        origin = origin_of(holder) if isinstance(holder, np.ndarray) else holder
        if origin is not holder:
            self.touch(origin)
        self.containers[id(holder)] = Before(holder, name, attributes, self.containers.get(id(origin)))
        return id(holder) not in self.given

    def writes(self, holder: Any, method: str, args: tuple[Any, ...]) -> None:
        """Note a call that changes a container, whatever it holds."""
        if isinstance(holder, CONTAINERS):
            self.touch(holder)
            if isinstance(holder, np.ndarray):
                self.origins_written.add(id(origin_of(holder)))
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
        locations = sum(location.read() is not value for location, value in self.locations.values())
        return locations + sum(before.changed() + len(before.calls) for before in self.containers.values())

    def written_containers(self) -> list[Before]:
        """Return the containers from before the run that it has written."""
        found = [b for b in self.containers.values() if b.changed() or b.calls or b.written]
        return [before for before in found if not self.made.was_made(before.holder)]

    def written_locations(self) -> list[tuple[Location, Any]]:
        """Return the places from before the run that it has written, with what stands there now."""
        found = [(key, location, location.read(), value) for key, (location, value) in self.locations.items()]
        written = [(p, now) for key, p, now, value in found if key in self.written or not same(now, value)]
        return [(location, now) for location, now in written if not self.made.is_new(location.holder)]

    def writes_location(self, location: Location) -> Callable[[], None]:
        """Note that the run is about to write a place; return what notes that it has."""
        self.before(location)
        return lambda: self.written.add(location.identity())

    def writes_key(self, holders: Sequence[Any], key: Any) -> None:
        """Note that the run wrote an entry of the dict of those that has it."""
        for holder in holders:
            if id(holder) in self.containers and key in holder:
                self.containers[id(holder)].written[key] = None

    # -- the end ---------------------------------------------------------------------------------------------
    def forget(self) -> None:
        """Let go of all that the run made."""
        for known in (*vars(self).values(), *vars(self.made).values()):
            if isinstance(known, (dict, list, set)):
                known.clear()

    def restore(self) -> None:
        """Let everything be as it was before the run."""
        for before in self.containers.values():
            if before.changed():
                before.restore()
        for location, value in self.locations.values():
            if not same(location.read(), value):
                location.restore(value)


RESHAPING: Final = frozenset({"reshape", "ravel", "flatten"})  # of arrays, alike of tensors
_MRO: Final = attrgetter("__mro__")
_REFERENT: Final = weakref.ref.__call__  # as subclasses do not
_LOCKS: Final = (type(threading.Lock()), type(threading.RLock()))
_BOUND: Final = (types.BuiltinFunctionType, types.MethodWrapperType)


def _ask(size: Sym | None) -> None:
    """Raise the question what a symbolic size is: it is answered by a capture for the size at hand."""
    if size is not None:
        raise undecided(size, "capture: Python needs to know a size")


def _dead(reference: weakref.ref[Any]) -> bool:
    return _REFERENT(reference) is None


def _settings_of_numpy(module: Any) -> tuple[Any, ...]:
    """Return what NumPy's functions depend on beside their arguments."""
    errors, shown = module.geterr(), module.get_printoptions()
    return (module.getbufsize(), module.geterrcall(), *errors.values(), *shown.values())


def _precision(module: Any) -> tuple[Any, ...]:
    """Return what the results of decimal arithmetic depend on."""
    c = module.getcontext()
    return (c.prec, c.rounding, c.Emin, c.Emax, c.capitals, c.clamp, *(t for t, on in c.traps.items() if on))
