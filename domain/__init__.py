"""The pure heart of inferlog: commands, events, state and the decisions between them.

Nothing here does I/O, reads a clock or draws a random number. Given the same log, every
function in this package gives the same answer on every machine, today and in ten years.
"""
