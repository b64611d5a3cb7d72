"""
The time of a training step: ours beside DistributedDataParallel's, and both beside the ideal.

Every worker computes on one thread, on a batch of its own. The systems take turns in the same run:

| system | what it is |
|---|---|
| alone | as many processes at once as there are workers, sharing nothing but the cores: computation alone |
| ddp | `DistributedDataParallel` over Gloo, as most scripts have it |
| ddp-view | the same with `gradient_as_bucket_view=True` |
| penstock | `ps.torch.distribute(model)`: backward ends with averages in `p.grad` |
| penstock-ddp | `DistributedDataParallel` with `ps.torch.hooks` |
| penstock-servers | `ps.torch.distribute(model, optimizer, where="servers")` |

The ideal is the step of `alone`, and beside it that step plus the gradients' bytes at the machine's limit:
the sum of all workers' gradients into one array, in vector code over plain memory on all cores. A system's
distance is its step less the second. What overlaps with computation may come below it.

With JAX there are two: alone, and penstock, `ps.jax.average(grads)` inside the compiled step.
"""
