"""One reader a file format, and one loader a family of benchmarks. Readers know numpy, loaders know torch."""
