"""Model operations for CPUs in C++, for weights in float32, 8 or 4 bits and KV in float32, bfloat16 or int8.

Knows nothing of model architectures. How it fits together: ``csrc/`` has the operations, one source for every
instruction set; :mod:`compilation` makes a library of them when the package is installed; :mod:`library` opens it;
:mod:`operations` is the list of operations of a step, written while the model's Python code runs and computed at once
by all threads at its end; :mod:`packing` lays weights out; :mod:`kernels` is the set of kernels that models call.
"""
