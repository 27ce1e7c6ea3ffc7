"""One reader per file format. Readers return NumPy arrays or plain Python values and know nothing of benchmarks."""
