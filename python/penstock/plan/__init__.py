"""
What a job needs of its network, before it is started: bandwidth, step time and cost of each topology.

Formulas only: nothing here opens a socket or needs the Rust core. docs/plan.md derives them.
"""
