"""Names and sizes, without torch: the command line is checked before anything is imported."""

MODELS = {"resnet18": 46_758_048, "transformer": 42_117_120, "small": 1_851_392}
"""Bytes of the parameters of each; a test compares them with the networks."""
SYSTEMS = ("penstock", "ddp")
MORE_SYSTEMS = ("penstock-servers", "penstock-ddp", "ddp-view")
"""Measured only on request."""
ALONE = "alone"
