"""The log in one SQLite file, which belongs to one process.

`store` is what the rest of inferlog uses. One thread (`writer`) writes and checkpoints
through one connection, and nothing else ever does: SQLite before 3.51.3 can corrupt a
database in WAL mode when two connections write or checkpoint at once.
"""
