"""The tables and figures of the paper as studies: their runs, metrics, published values and claims."""
