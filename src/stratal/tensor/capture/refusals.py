"""What a compiled function is refused, and what to do instead: a row each."""

from __future__ import annotations

from typing import NamedTuple

from stratal.base.errors import CaptureError


class Refusal(NamedTuple):
    """The rule and the hint of an error; `{}` in them stand for what a call gives."""

    rule: str
    hint: str = ""

    def __call__(self, got: str = "", *names: object, of: str = "capture") -> CaptureError:
        """Return the error to be raised; `names` fill the rule and the hint."""
        return CaptureError(f"{of}: {self.rule.format(*names)}", got=got, hint=self.hint.format(*names))


# fmt: off
# -- what depends on more than the program's state -----------------------------------------------------------
UNKNOWN = Refusal("a compiled function cannot call what depends on more than its arguments",
    "{}; or st.frozen({}, ..), called once")
ITERATOR = Refusal("a compiled function cannot take the next item of an iterator from outside",
    "take it outside and pass it as an argument; or st.frozen(next, it), taken once")
FILE = Refusal("a compiled function cannot use a file from outside",
    "print() without file= is repeated by each call; or return what is to be written")
REDIRECTED = Refusal("a compiled function cannot print or warn into a stream from outside",
    "redirect around the call: with redirect_stdout(out): step(..); or return what is to be written")
LOG = Refusal("a compiled function cannot write to a log",
    "log what it returns; what it prints is printed by each call")
LOCK = Refusal("a compiled function cannot take a lock: replays would not hold it",
    "take it around the call: with lock: step(..)")
LOADER = Refusal("a compiled function cannot draw batches of a loader: each epoch has its own order",
    "loop over it outside and pass each batch as an argument")
FRAME = Refusal("{} of a frame is where a program stands, which a replay does not",
    "pass it as an argument")
WEAK_PROXY = Refusal("what a weak proxy stands for may be gone at the next call",
    "use the object itself, or weakref.ref")
WEAK_AND_STRONG = Refusal("an object is asked of a weak reference, and reached in another way",
    "use one of the ways: whether it is gone may depend on what is captured")
WEAK_STATE = Refusal("a program would keep alive what it computes with, here asked of a weak reference",
    "use the object itself")
FOREIGN_ARRAY = Refusal("what another library's array holds cannot be watched",
    "pass st.tensor(x), or st.from_dlpack(x), as an argument")
UNWATCHED = Refusal("what an object of a class written in C holds cannot be watched",
    "read it outside and pass what it gives as an argument; or st.frozen(read), read once")
CACHED = Refusal("a cached function, which writes something only when it fills its cache, is called",
    "call {0} once outside, with these arguments; or {0}.__wrapped__")

# -- values that are known only after the run ----------------------------------------------------------------
_TEXT = "Python looks into text that is made of a tensor's value"
TEXT = Refusal(_TEXT,
    "print, return or store it as it is; or return the tensor and make text of it outside")
PADDED_TEXT = Refusal(_TEXT,
    "format numbers: f'{{x.sum():8.3f}}'")
ARRAY = Refusal("NumPy computes with an array that is an argument",
    "compute with st.tensor(array), which is an input of the program")

# -- what a replay cannot do or make -------------------------------------------------------------------------
DRAWN_ONCE = Refusal("initial values, orders, splits are drawn outside of programs: calls would repeat them",
    "make and reset layers outside of the compiled function; st.randn, x.normal_() draw inside")
FINALIZER = Refusal("a compiled function cannot make objects with a finalizer: replays would not call it",
    "make it outside and pass it as an argument")
ATTRIBUTE = Refusal("a compiled function cannot write attributes of a {}",
    "do it outside; of an array, write what it holds: a[...] = ..")
WRITTEN_BEFORE_CALL = Refusal("replays write Python's state when their program has run: behind st.host_call",
    "call st.host_call first; or let the function that it calls do both")
NEW_OBJECT = Refusal("a compiled function cannot return or store a new {}",
    "return tensors, containers of them, or objects of classes written in Python")
NEW_ITERATOR = NEW_OBJECT._replace(hint="a list of what it yields")
NEW_GRAPH = Refusal("what is returned or stored holds a graph, which is another one in each call",
    "call the function that st.vjp or st.linearize gives inside, and return what it gives")
NEW_VIEW = Refusal("a new view of an array, or a new array of objects, is returned or stored",
    "return tensors, or a copy of numbers: array.copy()")

# -- what calls of schedules and metrics change --------------------------------------------------------------
WRITTEN_TWICE = Refusal("what a {} changes in each call is also written by the function",
    "write it outside of the compiled function")
RATE_READ_AGAIN = Refusal("a rate is read again after a schedule has changed it",
    "step the schedule once, before or after all steps of its optimizer")
READ_AFTER_CALL = Refusal("{!r} is read after a call whose effect is known only when the program has run",
    "read it outside of the compiled function")
NUMBER_OF_SCHEDULE = Refusal("Python needs a number that a schedule changes inside",
    "step the schedule outside of the compiled function")

# -- arguments -----------------------------------------------------------------------------------------------
HOLDS_ITSELF = Refusal("an argument is a container that holds itself")
FOUND_ELSEWHERE = Refusal("an argument, a container of tensors, is what the function finds elsewhere, too",
    "pass it, or read it where it stands")

# -- how a function is captured, with its name in front ------------------------------------------------------
TRACED = Refusal("cannot be captured inside a tracing function, or at a debugger's prompt",
    "call the function that was compiled: f.__wrapped__(..)")
BUDGET_INSIDE = Refusal("has a memory budget, and is called inside another function that is captured",
    "give the budget to the outer function")
STACK_ENDED = Refusal("Python stopped telling what runs, since the stack came to its end",
    "let RecursionError pass, or call what recurses outside")
GRADIENTS_LEFT = Refusal("a compiled function cannot leave gradients switched on or off",
    "use a with block: with st.no_grad(): ..")
REQUIRES_GRAD = Refusal("requires_grad of a tensor changes, and results carry gradients",
    "call requires_grad_() before the compiled function")
NOT_CAPTURED = Refusal("nothing was captured yet",
    "call it once first")
# fmt: on
