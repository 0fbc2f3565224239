"""Our side of the figures on ``docs/performance.md``. ``python -m benchmarks.figures`` measures them."""
