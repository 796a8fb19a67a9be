"""One file per area; `cases()` of each gives its cases. To add an area: a file here, and its place in ORDER."""

ORDER = [
    "dispatch",
    "elementwise",
    "reductions",
    "rows",
    "layout",
    "matmul",
    "convolution",
    "pooling",
    "training",
    "resnet",
    "transformers",
    "recurrent",
    "indexing",
    "sorting",
    "fourier",
    "random",
    "linalg",
    "simulation",
    "loops",
    "compiling",
]
