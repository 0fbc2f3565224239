"""The same scheduler, driven by a clock that jumps and an executor that only says how long a step would take.

Knows nothing of models, devices at hand or HTTP: it imports the core, workloads and metrics, nothing above them.
"""
