"""Serving: frozen models behind HTTP, planned so that a promised latency holds. Needs the extra `[serve]`.

planning             latency tables, batch sizes, regimes, stages and pipelines: pure functions
planning_packing     sessions (model, rate, SLA) on workers, and which sets are refused
planning_queue       earliest deadline first, with admission and early drop
planning_simulator   the same queue under simulated traffic
"""
