"""The tables and figures of the paper as studies: what is run, what is read from it, what was printed, what holds."""
