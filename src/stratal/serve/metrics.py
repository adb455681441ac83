"""Metrics in Prometheus' format, in a registry of their own: one per server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stratal.serve.extra import required

BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class Metrics:
    """Counters, gauges and histograms of a server."""

    def __init__(self) -> None:
        client = required("prometheus_client")
        self._text = client.generate_latest
        self.content_type: str = client.CONTENT_TYPE_LATEST
        self.registry = client.CollectorRegistry()

        def made(kind: Any, name: str, text: str, labels: tuple[str, ...] = (), **more: Any) -> Any:
            return kind(f"stratal_{name}", text, labels, registry=self.registry, **more)

        self.monitoring = MonitoringMetrics(client, made)
        by_model = ("model",)
        self.requests = made(
            client.Counter, "requests", "requests answered, by HTTP status", ("model", "code")
        )
        self.rows = made(client.Counter, "rows", "rows computed", by_model)
        self.late = made(client.Counter, "late", "requests answered after their deadline", by_model)
        self.latency = made(
            client.Histogram, "request_seconds", "from arrival to answer", by_model, buckets=BUCKETS
        )
        self.batches = made(
            client.Histogram, "batch_rows", "rows of a batch", by_model, buckets=(1, 2, 4, 8, 16, 32, 64, 128)
        )
        self.predicted = made(
            client.Histogram, "prediction_error", "|predicted / measured - 1| of a batch", by_model,
            buckets=(0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0),
        )  # fmt: skip
        by_version = ("model", "version")
        self.version_requests = made(
            client.Counter, "version_requests", "requests that a version was given", (*by_version, "code")
        )
        self.version_latency = made(
            client.Histogram, "version_seconds", "from arrival to answer", by_version, buckets=BUCKETS
        )
        self.canary = made(client.Gauge, "canary_share", "share of requests of a canary; 0: none", by_model)
        self.queued = made(client.Gauge, "queued_requests", "requests that wait")
        self.workers = made(client.Gauge, "workers", "workers that live")
        self.lost = made(client.Counter, "workers_lost", "workers that ended or hung", ("how",))
        self.ready = made(client.Gauge, "model_ready", "1 where a model can be asked", by_model)

        self.variants = made(
            client.Counter,
            "variant_requests",
            "requests that a cheaper variant answered",
            ("model", "variant"),
        )

        self._of_request: dict[
            tuple[str, str], tuple[Any, Any]
        ] = {}  # children: looking them up takes longer
        self._of_version: dict[tuple[str, str, str], tuple[Any, Any]] = {}
        self._of_batch: dict[str, tuple[Any, Any, Any]] = {}

    def request(self, model: str, code: str, seconds: float) -> None:
        """Count a request that is answered."""
        if (found := self._of_request.get((model, code))) is None:
            found = self.requests.labels(model, code), self.latency.labels(model)
            self._of_request[model, code] = found
        found[0].inc()
        found[1].observe(seconds)

    def batch(self, model: str, rows: int, error: float) -> None:
        """Count a batch that ran; `error` is how far its time was from what was predicted."""
        if (found := self._of_batch.get(model)) is None:
            found = self.rows.labels(model), self.batches.labels(model), self.predicted.labels(model)
            self._of_batch[model] = found
        found[0].inc(rows)
        found[1].observe(rows)
        found[2].observe(error)

    def version_request(self, model: str, version: str, code: str, seconds: float) -> None:
        """Count a request that a version was given."""
        if (found := self._of_version.get((model, version, code))) is None:
            counter = self.version_requests.labels(model, version, code)
            found = counter, self.version_latency.labels(model, version)
            self._of_version[model, version, code] = found
        found[0].inc()
        found[1].observe(seconds)

    def text(self) -> bytes:
        """Return all of them as Prometheus reads them."""
        text: bytes = self._text(self.registry)
        return text


class MonitoringMetrics:
    """Counters and gauges of `monitoring`: drift, feedback, error budgets and alerts."""

    def __init__(self, client: Any, made: Callable[..., Any]) -> None:
        by_model, by_version = ("model",), ("model", "version")
        by_feature = (*by_version, "feature")
        self.psi = made(client.Gauge, "drift_psi", "population stability index of a feature", by_feature)
        self.ks = made(client.Gauge, "drift_ks", "Kolmogorov-Smirnov distance of a feature", by_feature)
        self.labelled = made(client.Counter, "feedback_rows", "rows with a label", by_version)
        self.right = made(client.Counter, "feedback_right_rows", "rows whose class was the label", by_version)
        self.error = made(
            client.Counter, "feedback_error", "absolute error of rows with a label, summed", by_version
        )
        self.accuracy = made(client.Gauge, "feedback_accuracy", "of the latest rows with a label", by_version)
        self.latest_error = made(
            client.Gauge,
            "feedback_mean_error",
            "mean absolute error of the latest rows with a label",
            by_version,
        )
        self.burn = made(
            client.Gauge,
            "slo_burn_rate",
            "share of bad requests over the share that may be",
            ("model", "window"),
        )
        self.left = made(client.Gauge, "slo_budget_left", "share of the error budget of six hours", by_model)
        self.alert = made(client.Gauge, "alert", "1 where an alert is on", ("model", "alert"))
