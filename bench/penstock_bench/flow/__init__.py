"""
Parameter Flow's experiment (2019, section 5): what its techniques save of a training's traffic and time.

The scripts of examples/flow train between test hosts, once with each system, and the kernel counts what the
links carry. A system is a row of `systems`; what is trained stands in `tasks`, with the filters for it.

| module | |
|---|---|
| tasks | the three workloads at the sizes that are measured, and their filters |
| systems | plain push and pull, and what Parameter Flow puts in its place, each technique by itself |
| training | one training: processes, and what they and the counters say of it |
| counters | the kernel's counters of the hosts' links |
| neighbours | competing flows that come and go |
| all_reduce | a job that trains the same scripts by Gloo |
| report, plot, pages | the arithmetic, the table, the pictures, the tables of the documentation |
"""
