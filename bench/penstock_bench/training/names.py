"""Names and sizes, without torch: the command line is checked before anything is imported."""

MODELS = {"resnet18": 46_758_048, "transformer": 42_117_120, "small": 1_851_392}
"""Bytes of the parameters of each; a test compares them with the networks."""
SYSTEMS = ("penstock", "ddp")
MORE_SYSTEMS = ("penstock-servers", "penstock-ddp", "ddp-view")
"""Measured only on request."""
ALONE = "alone"
OURS, PEER = "penstock", "ddp"

JAX_MODELS = {"layers": 8 * 4 << 20, "leaves": 200 * 4096}
"""Bytes of the parameters of each; a test compares them with the models."""

OVERHEADS = {
    "tensors": (64, 128, 256, 512),
    "bytes": (8 << 20, 16 << 20, 32 << 20, 64 << 20),
}
"""What sharing costs more of, the more of it there is; and how much of it each model of a sweep has."""
TENSOR_BYTES = 4096
"""Of each tensor in a sweep of tensors."""
