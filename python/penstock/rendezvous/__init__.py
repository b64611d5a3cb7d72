"""
How processes that a launcher started become one job.

| module | what it does |
|---|---|
| `environment` | reads what launchers set: which process this is, of how many, and what Penstock was told |
| `exchange` | everyone gives a short message and gets everyone's, or one error that says which are missing |
| `tcp`, `torch_store`, `mpi` | the ways to exchange: our own TCP rendezvous, torchrun's store, MPI |
| `choose` | which of them this process uses |
| `address` | the address by which other hosts reach this one |
| `servers`, `child` | a server as a child process that ends with its job or with its parent |
| `assemble` | all of it together: exchange, and start the servers that the topology says |
| `manager` | the job's servers as a manager names them |
| `join` | what `penstock.init` does |

Nothing is ever started on another host: each host's first process starts that host's server.
"""
