"""Steps that the loaders of several benchmarks share: the request, bad rows, splits, tokens, trees of images, texts."""
