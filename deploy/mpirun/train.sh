#!/bin/bash
# Workers by Open MPI's mpirun, on this host or on those of a host file:
#
#     deploy/mpirun/train.sh 4
#     HOSTFILE=hosts deploy/mpirun/train.sh 8 train.py
#
# With mpi4py the processes find each other by MPI, and nothing else is needed.

set -euo pipefail

workers=${1:?usage: train.sh WORKERS [SCRIPT]}
script=${2:-examples/linear.py}

mpirun -n "${workers}" ${HOSTFILE:+--hostfile "${HOSTFILE}"} python "${script}"
