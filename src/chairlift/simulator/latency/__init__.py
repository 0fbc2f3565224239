"""How long a step takes on a machine that is not there: from its data sheet, or as measured.

Knows nothing of schedulers: a model is told what a step holds and answers in nanoseconds.
"""
