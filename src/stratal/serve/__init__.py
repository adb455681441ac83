"""Serving: frozen models behind HTTP, planned so that a promised latency holds. Needs the extra `[serve]`.

planning             latency tables, batch sizes, regimes, stages and pipelines: pure functions
planning_packing     sessions (model, rate, SLA) on workers, and which sets are refused
planning_latency     medians and quantiles of the last batches of each size
planning_schedule    the batches that would run, and which would be late
planning_queue       earliest deadline first, with admission and early drop
planning_simulator   the same queue under simulated traffic
"""
