"""Real models in torch: the only package that imports torch.

Legend for the axes that comments name: ``T`` rows (tokens) of a step, ``D`` decode rows, ``S`` sampling rows,
``H`` query heads, ``G`` key-value heads, ``d`` head size, ``E`` hidden size, ``I`` intermediate size, ``V`` vocabulary,
``P`` pages, ``p`` token slots in a page, ``N`` slots (``max_num_seqs``), ``L`` layers.
"""
