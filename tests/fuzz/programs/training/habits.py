"""What people do around a training step: each row adds its lines to a draft, under its own name."""

from __future__ import annotations

import random
from collections.abc import Callable

from programs.training.draft import Draft
from programs.training.optimisers import SCHEDULES, options

Habit = Callable[[Draft, random.Random], None]
HABITS: dict[str, Habit] = {}


def habit(name: str) -> Callable[[Habit], Habit]:
    def named(row: Habit) -> Habit:
        HABITS[name] = row
        return row

    return named


# -- parameters ----------------------------------------------------------------------------------------------
@habit("frozen parameters")
def _frozen(d: Draft, rng: random.Random) -> None:
    at = rng.choice([":1", ":2", "-1:", "::2"])
    d.add("setup", f"for p in list(net.parameters())[{at}][:-1] or []: p.requires_grad_(False)")


@habit("unused parameters")
def _unused(d: Draft, rng: random.Random) -> None:
    d.add("setup", "spare = nn.Linear(3, 2).double()", "start(spare)")
    d.parameters = "[*net.parameters(), *spare.parameters()]"
    d.seen["spare"] = "spare"


@habit("heads that take turns")
def _turns(d: Draft, rng: random.Random) -> None:
    d.add("setup", f"heads = nn.ModuleList([nn.Linear({d.outputs}, {d.outputs}) for _ in range(2)]).double()", "start(heads)")
    d.parameters = "[*net.parameters(), *heads.parameters()]"
    d.seen["heads"] = "heads"
    how = rng.choice(["argument", "attribute", "inside"])
    d.forward = {"argument": "heads[turn](net(x))", "attribute": "heads[net.turn](net(x))"}.get(how, "heads[turns[0]](net(x))")
    if how == "argument":
        d.extra["turn"] = rng.choice(["k % 2", "int(k > 3)", "(0, 0, 1)[k % 3]"])
    elif how == "attribute":
        d.add("setup", "net.turn = 0")
        d.add("ahead", "net.turn = k // 2 % 2")
    else:
        d.add("setup", "turns = [0]")
        d.add("after", "turns[0] = 1 - turns[0]")
        d.seen["turns"] = "turns"


@habit("tied parameters")
def _tied(d: Draft, rng: random.Random) -> None:
    n = d.outputs
    d.add("setup", f"ends = nn.ModuleList([nn.Linear({n}, {n}), nn.Linear({n}, {n})]).double()",
          "ends[1].weight = ends[0].weight", "start(ends)")  # fmt: skip
    d.parameters = "[*net.parameters(), *ends.parameters()]"
    d.forward = "ends[1](lib.tanh(ends[0](net(x))))"
    d.seen["ends"] = "ends"


@habit("parameter read through a view")
def _viewed(d: Draft, rng: random.Random) -> None:
    d.add("penalties", rng.choice(["(w[:1] ** 2).sum() * 0.1", "(w.reshape(-1)[1:] * 0.2).sum()", "w.T.abs().sum() * 0.01"]))
    d.add("first", "w = next(net.parameters())")


@habit("weight penalty")
def _penalty(d: Draft, rng: random.Random) -> None:
    d.add("penalties", rng.choice([
        "0.01 * sum((p ** 2).sum() for p in net.parameters())",
        "0.01 * lib.stack([p.abs().mean() for p in net.parameters()]).sum()",
        "0.01 * sum(p.norm() for p in net.parameters())",
    ]))  # fmt: skip


@habit("parameters that thaw")
def _thaw(d: Draft, rng: random.Random) -> None:
    d.add("ahead", f"next(net.parameters()).requires_grad_({rng.choice(['k % 2 == 0', 'k > 2', 'k != 4'])})")


@habit("parameter written by hand")
def _by_hand(d: Draft, rng: random.Random) -> None:
    place = rng.choice(["behind", "after"])
    d.add(place, "with lib.no_grad():", "    " + rng.choice([
        "next(net.parameters()).mul_(0.9)", "for p in net.parameters(): p.clamp_(-0.7, 0.7)",
        "for p in net.parameters(): p.add_(p, alpha=-0.01)", "for p in net.parameters(): p.data.sub_(0.01 * p.data)",
    ]))  # fmt: skip


# -- optimisers ----------------------------------------------------------------------------------------------
@habit("groups of parameters")
def _groups(d: Draft, rng: random.Random) -> None:
    if d.parameters != "net.parameters()":
        return
    d.add("setup", "some, others = list(net.parameters())[::2], list(net.parameters())[1::2] or [lib.nn.Parameter(data(2))]")
    d.parameters = "[{'params': some, 'lr': 0.03}, {'params': others}]"


@habit("two optimisers")
def _two(d: Draft, rng: random.Random) -> None:
    name = rng.choice(["SGD", "Adam", "RMSprop"])
    d.add("setup", "bias = nn.Linear(1, 1).double()", "start(bias)",
          f"second = optim.{name}(bias.parameters(){options(rng, name)})")  # fmt: skip
    d.add("penalties", "((bias(y.sum(1, keepdim=True)) - 1) ** 2).mean() * 0.1")
    every = rng.choice(["", "if turn2[0] % 2 == 0: "])
    if every:
        d.add("setup", "turn2 = [0]")
        d.update += ["turn2[0] += 1"]
    d.update += [f"{every}second.step()"]
    d.zero += ["second.zero_grad()"]
    d.seen |= {"second": "second", "bias": "bias"}


@habit("clipping")
def _clip(d: Draft, rng: random.Random) -> None:
    what = rng.choice(["clip_grad_norm_(net.parameters(), 0.1)", "clip_grad_value_(net.parameters(), 0.01)",
                       "clip_grad_norm_(net.parameters(), 0.5, norm_type=1.0)", "clip_grad_norm_(net.parameters(), 1e9)"])  # fmt: skip
    d.add("between", f"norm = nn.utils.{what}")
    if "norm_" in what and rng.random() < 0.5:
        d.returns.append("norm")


@habit("gradient scaled by hand")
def _scaled(d: Draft, rng: random.Random) -> None:
    d.add("between", "for p in net.parameters():", "    if p.grad is not None: " + rng.choice([
        "p.grad.mul_(0.5)", "p.grad = p.grad * 0.5", "p.grad.add_(p.detach(), alpha=0.1)", "p.grad.clamp_(-0.05, 0.05)",
    ]))  # fmt: skip


@habit("accumulation by a count")
def _accumulate(d: Draft, rng: random.Random) -> None:
    d.add("setup", "count = [0]")
    d.zero = []
    lines = ["count[0] += 1", f"if count[0] % {rng.choice([2, 3])} == 0:"]
    d.update = [*lines, *("    " + line for line in [*d.update, "opt.zero_grad()"])]
    d.seen["count"] = "count"


@habit("schedule")
def _schedule(d: Draft, rng: random.Random) -> None:
    d.add("setup", "schedule = optim.lr_scheduler." + rng.choice(SCHEDULES))
    d.add(rng.choice(["after", "behind"]), "schedule.step()")


@habit("schedule on the loss")
def _plateau(d: Draft, rng: random.Random) -> None:
    d.add("setup", "plateau = optim.lr_scheduler.ReduceLROnPlateau(opt, patience=0, factor=0.5)")
    d.add("behind", "plateau.step(float(loss.detach() if hasattr(loss, 'detach') else loss[0].detach()))")


@habit("rate written outside")
def _rate(d: Draft, rng: random.Random) -> None:
    d.add("ahead", f"opt.param_groups[0]['lr'] = {rng.choice(['0.01 * (k + 1)', '0.05 if k < 4 else 0.01', '0.0 if k == 3 else 0.02'])}")


@habit("parameters added later")
def _later(d: Draft, rng: random.Random) -> None:
    if any("schedule" in line for line in d.lines["setup"]):
        return  # PyTorch's schedules do not take groups that come later
    d.add("setup", "late = lib.nn.Parameter(data(3))")
    d.add("ahead", "if k == 2: opt.add_param_group({'params': [late]})")  # before a checkpoint is taken
    d.add("penalties", "(late ** 2).sum() * 0.1")
    d.seen["late"] = "late"


@habit("gradients set to zero in place")
def _zeros(d: Draft, rng: random.Random) -> None:
    d.zero = [z.replace("zero_grad()", "zero_grad(set_to_none=False)") for z in d.zero]


@habit("gradients cleared after the update")
def _cleared(d: Draft, rng: random.Random) -> None:
    if d.zero:
        d.update += d.zero
        d.zero = []


# -- state beside the network --------------------------------------------------------------------------------
@habit("moving average of the weights")
def _average(d: Draft, rng: random.Random) -> None:
    d.add("setup", "mean = copy.deepcopy(net)", "for p in mean.parameters(): p.requires_grad_(False)")
    update = rng.choice(["e.mul_(0.9).add_(p, alpha=0.1)", "e.lerp_(p, 0.1)", "e.copy_(0.9 * e + 0.1 * p)", "e += 0.1 * (p - e)"])
    d.add(rng.choice(["after", "behind"]), "with lib.no_grad():", f"    for e, p in zip(mean.parameters(), net.parameters()): {update}")
    d.seen["mean"] = "mean"


@habit("averaged model")
def _averaged(d: Draft, rng: random.Random) -> None:
    d.add("setup", "mean = optim.swa_utils.AveragedModel(net)")
    d.add(rng.choice(["after", "behind"]), "mean.update_parameters(net)")
    d.seen["mean"] = "mean"


@habit("target network")
def _target(d: Draft, rng: random.Random) -> None:
    d.add("setup", "target = copy.deepcopy(net)")
    d.add("first", "with lib.no_grad(): wanted = target(x)")
    d.add("penalties", "F.mse_loss(net(x), wanted) * 0.3")
    d.add("behind", f"if k % {rng.choice([2, 3])} == 1: target.load_state_dict(net.state_dict())")
    d.seen["target"] = "target"


@habit("queue of outputs")
def _queue(d: Draft, rng: random.Random) -> None:
    size = d.batch * 2 + rng.choice([0, 1])
    d.add("setup", f"queue, at = data({size}, {d.outputs}), [0]")
    d.add("penalties", "((y @ queue.T) ** 2).mean() * 0.1")
    d.add("after", f"with lib.no_grad(): queue[at[0]:at[0] + y.shape[0]] = y.detach()[:{size} - at[0]]", f"at[0] = (at[0] + y.shape[0]) % {size}")
    d.seen |= {"queue": "queue", "at": "at"}


@habit("buffer that moves")
def _buffer(d: Draft, rng: random.Random) -> None:
    d.add("setup", f"centre = lib.zeros({d.outputs}, dtype=lib.float64)")
    d.add("penalties", "((y - centre) ** 2).mean() * 0.1")
    how = rng.choice(["centre.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)", "centre.copy_(0.9 * centre + 0.1 * y.detach().mean(0))", "centre.lerp_(y.detach().mean(0), 0.1)"])
    d.add("after", f"with lib.no_grad(): {how}")
    d.seen["centre"] = "centre"


@habit("running loss")
def _running(d: Draft, rng: random.Random) -> None:
    d.add("setup", "log = types.SimpleNamespace(mean=lib.zeros((), dtype=lib.float64))")
    d.add("after", "log.mean = log.mean * 0.9 + loss.detach() * 0.1")
    d.seen["log"] = "log.mean"


@habit("list of losses")
def _losses(d: Draft, rng: random.Random) -> None:
    d.add("setup", "losses = []")
    what = rng.choice(["loss", "loss.detach()", "float(loss.detach())", "y.detach()"])
    d.add("behind", "losses.append((loss if hasattr(loss, 'detach') else loss[0]).detach())") if rng.random() < 0.6 else d.add("after", f"losses.append({what})")
    d.seen["losses"] = "losses"


@habit("counter")
def _counter(d: Draft, rng: random.Random) -> None:
    d.add("setup", "steps = {'done': 0}")
    d.add("after", "steps['done'] += 1")
    if rng.random() < 0.5:
        d.add("penalties", "0.01 * steps['done'] * (y ** 2).mean()")
    d.seen["steps"] = "steps"


@habit("weight that Python changes")
def _factor(d: Draft, rng: random.Random) -> None:
    d.add("setup", "factor = types.SimpleNamespace(k=1.0)")
    d.add("ahead", f"factor.k = {rng.choice(['0.5 ** k', '1.0 if k < 3 else 0.1', 'float(k % 2)', 'k'])}")
    d.add("penalties", "factor.k * (y ** 2).mean() * 0.1")


@habit("toggle")
def _toggle(d: Draft, rng: random.Random) -> None:
    d.add("setup", "net.odd = False")
    d.add("after", "net.odd = not net.odd")
    d.add("penalties", "(y.abs().mean() if net.odd else (y ** 2).mean()) * 0.1")
    d.seen["odd"] = "net.odd"


@habit("modes outside")
def _modes(d: Draft, rng: random.Random) -> None:
    d.add("ahead", f"net.train({rng.choice(['k % 2 == 0', 'k % 3 != 2', 'k < 5'])})")


@habit("validation inside")
def _validation(d: Draft, rng: random.Random) -> None:
    d.add("after", "net.eval()", "with lib.no_grad(): check = net(x).mean()", "net.train()")
    d.returns.append("check")


@habit("validation outside")
def _evaluate(d: Draft, rng: random.Random) -> None:
    d.add("setup", "@compiled", "def evaluate(x):", "    net.eval()", "    with lib.no_grad(): made = net(x)", "    net.train()", "    return made")
    d.add("behind", "checked = evaluate(x)")
    d.seen["checked"] = "checked"


@habit("checkpoint reloaded")
def _checkpoint(d: Draft, rng: random.Random) -> None:
    d.add("setup", "saved = {}")
    d.add("behind", "if k == 2: saved = copy.deepcopy({'net': net.state_dict(), 'opt': opt.state_dict()})",
          "if k == 5:", "    net.load_state_dict(saved['net'])", "    opt.load_state_dict(saved['opt'])")  # fmt: skip


@habit("network made anew")
def _anew(d: Draft, rng: random.Random) -> None:
    if d.parameters != "net.parameters()" or "saved = {}" in d.lines["setup"]:
        return
    d.rebound += ["net", "opt"]
    d.add("behind", "if k == 4:", "    made = copy.deepcopy(net)", f"    opt = optim.SGD(made.parameters(), lr={rng.choice([0.01, 0.05])}, momentum=0.5)", "    net = made")


# -- arguments -----------------------------------------------------------------------------------------------
@habit("changing batches")
def _sizes(d: Draft, rng: random.Random) -> None:
    d.sizes = True


@habit("batches that are views")
def _views(d: Draft, rng: random.Random) -> None:
    d.add("ahead", rng.choice(["x = lib.cat([x, x])[:x.shape[0]]", "x = lib.cat([x, x])[x.shape[0]:]", "x = lib.stack([x, x])[k % 2]"]))


@habit("noise added to the batch in place")
def _in_place(d: Draft, rng: random.Random) -> None:
    d.add("first", "if lib.is_floating_point(x): x.mul_(0.9)")
    d.add("ahead", "x = x.clone()")
    d.seen["x"] = "x"


@habit("batch and its alias")
def _alias(d: Draft, rng: random.Random) -> None:
    d.extra["again"] = rng.choice(["x", "x if k % 2 else x.clone()", "x[:]", "x.detach()"])
    d.add("penalties", "F.mse_loss(net(again), y.detach()) * 0.2")


@habit("constant argument")
def _constant(d: Draft, rng: random.Random) -> None:
    d.extra["scale"] = rng.choice(["0.1 * k", "k", "'mean' if k % 3 else 'sum'", "[0.1, 0.2][k % 2]", "{'a': k % 2}", "None if k % 2 else 0.3"])
    d.add("penalties", "(y ** 2).mean() * (len(scale) * 0.1 if isinstance(scale, str) else scale['a'] if isinstance(scale, dict) else scale or 0.0)")


@habit("results beside the loss")
def _results(d: Draft, rng: random.Random) -> None:
    d.returns.append(rng.choice(["y", "y.detach()", "x", "{'y': y.detach(), 'mean': y.detach().mean()}", "[y.detach(), t]", "net.training"]))


@habit("step in microbatches")
def _chunks(d: Draft, rng: random.Random) -> None:
    d.add("between", f"for part in x.chunk({rng.choice([2, 3])}): (net(part) ** 2).mean().backward()")


@habit("gradient noise")
def _noise(d: Draft, rng: random.Random) -> None:
    d.torch = False
    d.add("between", "for p in net.parameters():", "    if p.grad is not None: p.grad.add_(lib.randn(*p.shape, dtype=lib.float64), alpha=0.01)")


@habit("scaler")
def _scaler(d: Draft, rng: random.Random) -> None:
    if d.update != ["opt.step()"]:
        return
    d.torch = False  # PyTorch's is for CUDA unless told otherwise
    d.add("setup", "scaler = lib.amp.GradScaler(init_scale=8.0, growth_interval=2)")
    d.update = ["scaler.unscale_(opt)", "scaler.step(opt)", "scaler.update()"]
    d.lines["backward"] = ["scaler.scale(loss).backward()"]
