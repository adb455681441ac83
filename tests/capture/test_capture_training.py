# ruff: noqa: E501 (tables)
"""Training: schedules and optimisers inside of a compiled step, and gradients that begin inside and end outside."""

import pytest
from capture_cases import Case, check, check_noticed, history
from capture_ways import WAYS, each_way

import stratal as st
from stratal import nn, optim
from stratal.base.errors import NotDifferentiableError

pytestmark = pytest.mark.filterwarnings("error")  # a guard notices, not an audit

# -- schedules and optimisers --------------------------------------------------------------------------------
MOMENTUM = """
class Momentum(optim.Optimizer):
    "An optimiser with a step of its own, as PyTorch's tutorials write one."
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})
    @st.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if "m" not in state:
                    state["m"] = st.zeros_like(p)
                state["m"].mul_(0.9).add_(p.grad)
                p.add_(state["m"], alpha=-group["lr"])
epochs = []
def rate(epoch):
    epochs.append(epoch)
    return 1 / len(epochs)
st.manual_seed(0)
net = nn.Linear(4, 1)
"""
OPTIMISERS = {
    "own": "Momentum(net.parameters(), 0.05)", "SGD": "optim.SGD(net.parameters(), lr=0.05, momentum=0.9)",
    "AdamW": "optim.AdamW(net.parameters(), lr=0.05)",
}  # fmt: skip
SCHEDULES = {
    "step": "StepLR(opt, 2, 0.5)", "cosine": "CosineAnnealingLR(opt, 20)", "lambda": "LambdaLR(opt, lambda e: 0.9**e)",
    "lambda with state": "LambdaLR(opt, rate)", "one cycle": "OneCycleLR(opt, max_lr=0.1, total_steps=20)",
    "cyclic": "CyclicLR(opt, 0.01, 0.1, step_size_up=3, cycle_momentum=False)",
}  # fmt: skip
STEP = """
if ahead: schedule.step()
loss = net(x).pow(2).mean()
opt.zero_grad()
loss.backward()
opt.step()
if not ahead: schedule.step()
return loss
"""
SCHEDULED = [  # the own optimiser has no momentum to cycle
    (o, s) for o in OPTIMISERS for s in SCHEDULES if (o, s) != ("own", "one cycle")
]  # fmt: skip


@pytest.mark.sampled(10)
@each_way
@pytest.mark.parametrize("ahead", [True, False], ids=["ahead", "behind"])
@pytest.mark.parametrize(("optimiser", "schedule"), SCHEDULED)
@pytest.mark.filterwarnings("ignore")
def test_schedules_step_inside_at_no_capture(optimiser, schedule, ahead, way):
    setup = f"{MOMENTUM}opt, ahead = {OPTIMISERS[optimiser]}, {ahead}\nschedule = optim.lr_scheduler.{SCHEDULES[schedule]}"
    case = Case(
        setup, STEP, seen="opt.param_groups[0]['lr'], net.weight", given="st.ones(3, 4) * (0.1 * i)", calls=9,
        captures=range(4), rtol=1e-5,  # captures: the first, one that finds state, one for a number that changes
    )  # fmt: skip
    check(case, WAYS[way])


MORE = {
    "StepLR": "S.StepLR(opt, 2, 0.5)", "OneCycleLR": "S.OneCycleLR(opt, 1.0, total_steps=30)",
    "CosineAnnealingWarmRestarts": "S.CosineAnnealingWarmRestarts(opt, 3)",
    "LambdaLR": "S.LambdaLR(opt, lambda k: 1 / (1 + k))", "CyclicLR": "S.CyclicLR(opt, 0.01, 0.1, step_size_up=2)",
    "SequentialLR": "S.SequentialLR(opt, [S.ConstantLR(opt, 0.1, 3), S.ExponentialLR(opt, 0.9)], [3])",
    "ChainedScheduler": "S.ChainedScheduler([S.ConstantLR(opt, 0.1, 3), S.ExponentialLR(opt, 0.9)])",
    "ReduceLROnPlateau": "S.ReduceLROnPlateau(opt, patience=0, factor=0.5)",
}  # fmt: skip
WEIGHT = "S = optim.lr_scheduler; w = nn.Parameter(st.ones(1)); opt = optim.SGD([w], lr=0.1, momentum=0.9); schedule = {}"
LOSS_OF_IT = "loss = ((w * x) ** 2).sum()\nopt.zero_grad()\nloss.backward()\nopt.step()\n"
RATES = f"{LOSS_OF_IT}schedule.step()\nreturn loss.detach(), schedule.get_last_lr()"
ORDERS = {
    "before": f"schedule.step()\n{LOSS_OF_IT}return loss.detach()",
    "after": f"{LOSS_OF_IT}schedule.step()\nreturn loss.detach()", "rates": RATES,
}  # fmt: skip
OF_A_LOSS = f"{LOSS_OF_IT}schedule.step(loss.detach())\nreturn loss.detach()"
ALL_OF_IT = "opt.param_groups[0]['lr'], {k: v for k, v in schedule.state_dict().items() if k != 'lr_lambdas'}"
ORDERED = [(name, order) for name in MORE for order in ORDERS if name != "ReduceLROnPlateau"]


@pytest.mark.parametrize(("name", "order"), [*ORDERED, ("ReduceLROnPlateau", "after")])
@pytest.mark.filterwarnings("ignore")
def test_schedules_are_what_they_are_uncompiled(name, order):
    body = OF_A_LOSS if name == "ReduceLROnPlateau" else ORDERS[order]
    captures = () if order == "rates" else (1,)
    case = Case(
        WEIGHT.format(MORE[name]), body, seen=ALL_OF_IT, given="st.ones(1)", calls=10, captures=captures
    )
    check(case, WAYS["audited"])


GROUP = "opt.param_groups[0]['params']"
BY_HAND = {
    "pop": f"{GROUP}.pop()", "slice": f"{GROUP}[:] = {GROUP}[:1]", "delete": f"del {GROUP}[0]",
    "groups cleared": "opt.param_groups.clear()", "no groups": "operator.imul(opt.param_groups, 0)",
    "another group": "operator.iadd(opt.param_groups, optim.SGD([st.ones(1)], lr=0.5).param_groups)",
    "repeated": f"operator.iadd({GROUP}, {GROUP}[:1])", "reverse": f"{GROUP}.reverse()",
    "step": "opt.step = lambda *a: None", "zero_grad": "opt.zero_grad = lambda *a: None",
}  # fmt: skip
UNNOTICED = ("another group", "reverse")  # change no number


@each_way
@pytest.mark.parametrize("kind", BY_HAND)
def test_optimizers_that_are_changed_by_hand_are_noticed(kind, way):
    setup = "a, b = nn.Parameter(st.ones(1)), nn.Parameter(st.ones(1)); opt = optim.SGD([a, b], lr=0.1)"
    body = "opt.zero_grad()\n((a + b) * x).sum().backward()\nopt.step()"
    case = Case(setup, body, BY_HAND[kind], "a, b", "st.ones(1)", calls=8, at=(6,))
    (check if kind in UNNOTICED else check_noticed)(case, WAYS[way])


BRANCH = "opt.zero_grad()\n(w * x).sum().backward()\n{}\nreturn w.detach() * 1"
MAKERS = {"SGD": "optim.SGD([w], lr=0.1, momentum=0.9)", "Adam": "optim.Adam([w])"}


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("way", [lambda f: f, WAYS["not audited"]], ids=["uncompiled", "compiled"])
def test_an_optimizer_steps_in_a_branch(make, way):
    setup, given = (
        f"w = nn.Parameter(st.ones(2)); opt = {MAKERS[make]}",
        "st.full((2,), (1.0, 2.0, -1.0, 3.0, -2.0, 1.0)[i])",
    )
    branch = Case(setup, BRANCH.format("st.cond(x.sum() > 0, opt.step, lambda: None)"), given=given, calls=6)
    python = Case(setup, BRANCH.format("if float(x.sum()) > 0: opt.step()"), given=given, calls=6)
    assert history(branch, way)[0] == history(python, lambda f: f)[0]


def test_batches_that_are_overlapping_views_are_captured_once():
    data = st.arange(4 * 400).reshape(4, 400) % 7
    emb, head = nn.Embedding(7, 8), nn.Linear(8, 7)
    opt = optim.SGD([*emb.parameters(), *head.parameters()], lr=0.1)

    @st.compile
    def step(x, y):
        loss = nn.functional.cross_entropy(head(emb(x)).flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    for j in range(0, 160, 16):
        step(data[:, j : j + 16], data[:, j + 1 : j + 17])
    assert step.captures == 1


def test_a_result_that_took_part_in_a_gradient_says_so_and_cannot_lose_its_history():
    w, not_audited = nn.Parameter(st.full((1,), 2.0)), WAYS["not audited"]

    @not_audited
    def step(x):
        loss = (w * x).sum()
        loss.backward()
        return loss

    other = not_audited(lambda a: (a * w).sum().backward())
    for k in range(3):
        loss = step(st.full((1,), float(k)))
        assert loss.requires_grad
        for use in (lambda loss=loss: (loss + w.sum()).backward(), lambda loss=loss: other(loss)):
            with pytest.raises(NotDifferentiableError, match="used up"):
                use()
        assert not loss.detach().requires_grad


# -- gradients that begin in a compiled call and end outside -------------------------------------------------
LOSS = """
st.manual_seed(0)
net = nn.Sequential(nn.Linear(3, 4), nn.{middle}, nn.Linear(4, 1))
opt, box = optim.SGD(net.parameters(), lr=0.1, momentum=0.9), Plain(1.0)
box.last, rng, factor, step_outside = st.zeros(1), np.random.default_rng(0), {factor}, {step_outside}
def graded(): return [p for p in net.parameters() if p.grad is not None]
def finish(made):
    "Differentiate what a call made, and return all that is there; NaN for no gradient."
    made["loss"].backward()
    seen = [x.detach() + 0 for x in (*net.parameters(), *net.buffers(), box.last, *made.values())]
    seen += [math.nan if p.grad is None else p.grad + 0 for p in net.parameters()]
    if step_outside: opt.step(), opt.zero_grad()
    return seen
"""
FORWARD = """
out = net(x) * box.k
return {"loss": (out**2).mean(), "out": out}
"""
INSIDE = {
    "nothing": "pass", "zero_grad": "opt.zero_grad()", "zero_grad to zeros": "opt.zero_grad(set_to_none=False)",
    "zero_grad of the net": "net.zero_grad()", "none": "net[0].weight.grad = None",
    "halved in place": "for p in graded(): p.grad.mul_(0.5)", "halved": "for p in graded(): p.grad = p.grad * 0.5",
    "made": "for p in net.parameters(): p.grad = p.detach() * 2",
    "decayed": "with st.no_grad():\n for p in net.parameters(): p.mul_(0.9)",
    "clipped": "nn.utils.clip_grad_norm_(graded(), 1.0)", "stepped": "opt.step()",
    "stepped and zeroed": "opt.step(), opt.zero_grad()", "stored": "box.last = net[0].weight.detach() * 0.1",
}  # fmt: skip


@pytest.mark.sampled(42)
@pytest.mark.parametrize("step_outside", [False, True])
@pytest.mark.parametrize("factor", [0.0, 0.1], ids=["fixed", "varying"])
@pytest.mark.parametrize("middle", ["Tanh()", "BatchNorm1d(4)"])
@pytest.mark.parametrize("act", INSIDE)
def test_losses_that_are_differentiated_outside(act, middle, factor, step_outside):
    setup = LOSS.format(middle=middle, factor=factor, step_outside=step_outside)
    given = "st.tensor(rng.standard_normal((5, 3)).astype(np.float32))"
    case = Case(
        setup,
        f"{INSIDE[act]}{FORWARD}",
        "del results[:-1]; box.k = 1.0 + factor * i",
        "*finish(results[-1])",
        given,
        calls=4,
        at=range(4),
    )
    check(case._replace(rtol=1e-4, atol=1e-5), WAYS["audited"])
