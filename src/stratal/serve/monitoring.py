"""Monitoring: drift, accuracy on feedback, error budgets; as metrics and alerts, and for the status page.

Requests are noted as they are answered; figures are computed when they are asked for, at most once a second,
in a thread: drift of many features takes milliseconds, which no request should wait for.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from stratal.serve.drift import Drift, Window, compare
from stratal.serve.feedback import Accuracy, Answers, Said, kind_of, predictions
from stratal.serve.metrics import Metrics
from stratal.serve.model_config import ModelConfig
from stratal.serve.protocol import RequestError
from stratal.serve.registry import Loaded
from stratal.serve.request_log import Call, RequestLog
from stratal.serve.slo import WINDOWS, ErrorBudget

REFRESH_SECONDS: Final = 1.0
WORST: Final = 5  # drifted features that the status page names


@dataclass
class Watched:
    """What is known of a model's requests: its budget, its inputs, and how right its answers were."""

    model: Loaded
    config: ModelConfig
    budget: ErrorBudget
    window: Window | None  # None without a training sample
    accuracy: Accuracy
    drift: list[Drift] = field(default_factory=list)
    alerts: dict[str, bool] = field(default_factory=dict)

    @classmethod
    def of(cls, model: Loaded, config: ModelConfig) -> Watched:
        window = Window(model.signature) if model.training else None
        accuracy = Accuracy.of(kind_of(model.signature))
        return cls(model, config, ErrorBudget(config.objective), window, accuracy)

    def drifted(self) -> list[Drift]:
        """Return the features that have drifted, the furthest first."""
        found = [d for d in self.drift if d.drifted(self.config.drift_psi, len(self.drift))]
        return sorted(found, key=lambda d: -d.psi)


class Monitoring:
    """The models of a server that are watched: those that answer, not their canaries."""

    def __init__(
        self, metrics: Metrics, log: RequestLog | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.watched: dict[str, Watched] = {}
        self.answers = Answers()
        self._metrics = metrics
        self._log = log
        self._clock = clock
        self._refreshed = -math.inf

    def watch(self, model: Loaded, config: ModelConfig) -> None:
        """Watch a model from now on, instead of what answered under its name; its budget goes on."""
        old = self.watched.pop(model.name, None)
        new = self.watched[model.name] = Watched.of(model, config)
        if old is not None:
            self._remove(old)
            if old.config.objective == config.objective:
                new.budget = old.budget

    def forget(self, name: str) -> None:
        """Watch a model no more."""
        if (old := self.watched.pop(name, None)) is not None:
            self._remove(old)

    # -- what happens ----------------------------------------------------------------------------------------

    def counted(self, call: Call, sla: float) -> None:
        """Count a request for the error budget, unless it is the client's fault that it was not answered.

        Bad are answers after the SLA, refusals for lack of time (429) and errors of the server (5xx); what
        asked for less time than the SLA counts where it was answered.
        """
        watched = self.watched.get(call.model)
        if watched is None:
            return
        if call.status == 200:
            watched.budget.note(call.seconds <= sla, self._clock())
        elif (call.status == 429 or call.status >= 500) and (call.asked is None or call.asked >= sla):
            watched.budget.note(False, self._clock())

    def answered(
        self, model: Loaded, call: Call, inputs: Sequence[bytes | memoryview], outputs: Sequence[memoryview]
    ) -> None:
        """Note inputs and predictions of a request that `model` answered."""
        watched = self.watched.get(model.name)
        if watched is not None and watched.window is not None and watched.model is model:
            watched.window.observe(inputs, call.rows, self._clock())
        if kind := kind_of(model.signature):
            values = predictions(outputs[0], model.signature)
            self.answers.note(call.model, call.id, Said(model.name, model.version, call.caller, kind, values))

    def labelled(self, asked: str, caller: str, body: dict[str, Any]) -> dict[str, Any]:
        """Take the label of an answer; return what was counted. Raises: RequestError."""
        identity = body.get("id")
        if set(body) != {"id", "label"} or not isinstance(identity, str):
            raise RequestError(400, "feedback: an object of id and label", got=repr(body)[:80])
        said, values = self.answers.labelled(asked, identity, caller, body["label"])
        counters = self._metrics.monitoring
        if said.kind == "value":
            counters.error.labels(said.model, said.version).inc(float(values.sum()))
        counters.labelled.labels(said.model, said.version).inc(len(values))
        if said.kind != "value":
            counters.right.labels(said.model, said.version).inc(float(values.sum()))
        watched = self.watched.get(said.model)
        if (
            watched is not None
            and watched.model.version == said.version
            and watched.accuracy.kind == said.kind
        ):
            watched.accuracy.add(values.tolist())
        return {
            "model": said.model,
            "version": said.version,
            "rows": len(values),
            "mean": float(values.mean()),
        }

    # -- figures ---------------------------------------------------------------------------------------------

    async def refresh(self) -> None:
        """Compute all figures and set the metrics, unless that was done a moment ago."""
        if self._clock() - self._refreshed < REFRESH_SECONDS:
            return
        self._refreshed = self._clock()
        for watched in list(self.watched.values()):
            if watched.window is not None and (latest := watched.window.latest()):
                model = watched.model
                watched.drift = await asyncio.to_thread(compare, model.training, latest, model.signature)
            if self.watched.get(watched.model.name) is watched:
                self._publish(watched)

    def _publish(self, watched: Watched) -> None:
        gauges, name, version, now = (
            self._metrics.monitoring,
            watched.model.name,
            watched.model.version,
            self._clock(),
        )
        for drift in watched.drift:
            gauges.psi.labels(name, version, drift.feature).set(drift.psi)
            gauges.ks.labels(name, version, drift.feature).set(drift.ks)
        for window in WINDOWS:
            gauges.burn.labels(name, window).set(watched.budget.burn_rate(window, now))
        gauges.left.labels(name).set(1 - watched.budget.burn_rate("6h", now))
        if watched.accuracy.latest:
            gauge = gauges.latest_error if watched.accuracy.kind == "value" else gauges.accuracy
            gauge.labels(name, version).set(watched.accuracy.mean)
        config = watched.config
        alerts = {
            **watched.budget.alerts(now), "drift": bool(watched.drifted()),
            "accuracy": watched.accuracy.worse_than(config.least_accuracy, config.most_error),
        }  # fmt: skip
        for alert, on in alerts.items():
            gauges.alert.labels(name, alert).set(on)
            if on != watched.alerts.get(alert, False):
                self._tell(name, alert, on)
        watched.alerts = alerts

    def _tell(self, name: str, alert: str, on: bool) -> None:
        if self._log is not None:
            self._log.write({"model": name, "alert": alert, "on": on})
        print(f"stratal: {name}: the alert {alert} is {'on' if on else 'over'}", file=sys.stderr)

    def _remove(self, old: Watched) -> None:
        """Take the figures of a version that answers no more out of the metrics."""
        gauges, name, version = self._metrics.monitoring, old.model.name, old.model.version
        gone: list[tuple[Any, tuple[str, ...]]]
        gone = [(gauge, (name, version)) for gauge in (gauges.accuracy, gauges.latest_error)]
        gone += [(gauge, (name, version, d.feature)) for d in old.drift for gauge in (gauges.psi, gauges.ks)]
        gone += [(gauges.burn, (name, window)) for window in WINDOWS]
        gone += [(gauges.alert, (name, alert)) for alert in old.alerts]
        for gauge, labels in [*gone, (gauges.left, (name,))]:
            with contextlib.suppress(KeyError):  # it was never set
                gauge.remove(*labels)

    def to_json(self, name: str) -> dict[str, Any] | None:
        """Return what the status page shows of a model."""
        watched = self.watched.get(name)
        if watched is None:
            return None
        now, drifted, accuracy = self._clock(), watched.drifted(), watched.accuracy
        return {
            "alerts": sorted(alert for alert, on in watched.alerts.items() if on),
            "objective": watched.config.objective,
            "budget_left": 1 - watched.budget.burn_rate("6h", now),
            "burn_rates": {window: watched.budget.burn_rate(window, now) for window in WINDOWS},
            "labels": len(accuracy.latest), "kind": accuracy.kind,
            "accuracy": accuracy.mean if accuracy.latest else None,
            "rows": 0 if watched.window is None else watched.window.seen,
            "watched": len(watched.drift), "drifted": len(drifted),
            "worst": [{"feature": d.feature, "psi": d.psi, "ks": d.ks} for d in drifted[:WORST]],
        }  # fmt: skip
