"""
Item tables beside hand-written MPI on the same work, and what slack does against a straggler.

| file | what |
|---|---|
| `work` | the work: sizes, contents, what is verified |
| `ranks` | how one rank of any system does it, and how its time is taken |
| `tables`, `mpi`, `sockets` | one rank of Penstock, of Open MPI, of plain TCP |
| `memory` | the limit on one host: plain copies in one process |
| `systems` | how the processes are started |
| `runner`, `report`, `plot` | rounds in turns; tables and JSON; the picture |
| `straggler`, `straggler_rank` | time to a given loss by slack, with a worker that sleeps at random |
"""
