"""The speculative engine: models, MTP heads, caches, the decode loop, and the child process around them. It knows no Redis."""
