"""What crosses a process border or reaches a disk: specs, messages, Arrow schemas, the manifest and the error tree.

Each module holds one noun. This package imports none of the others.
"""
