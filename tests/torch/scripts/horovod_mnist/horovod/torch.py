"""The calls, by their names and with their meaning: gradients are averaged when the optimizer steps."""

import atexit

import torch
from torch import distributed

Average = "average"


def init():
    distributed.init_process_group("gloo")
    atexit.register(shutdown)


def shutdown():
    # Gloo's threads abort a process that ends while they are at work for another.
    distributed.barrier()
    distributed.destroy_process_group()


def rank():
    return distributed.get_rank()


def size():
    return distributed.get_world_size()


def broadcast_parameters(params, root_rank):
    for value in params.values():
        distributed.broadcast(value, root_rank)


def broadcast_optimizer_state(optimizer, root_rank):
    assert not optimizer.state, "a fresh optimizer has none"


def allreduce(tensor, name=None):
    total = tensor.clone()
    distributed.all_reduce(total)
    return total / size()


def DistributedOptimizer(optimizer, named_parameters=None, op=Average):
    def average(*_):
        for _, parameter in parameters:
            torch.div(allreduce(parameter.grad), 1, out=parameter.grad)

    parameters = list(named_parameters)
    optimizer.register_step_pre_hook(average)
    return optimizer
