"""Output that follows a grammar: JSON schemas, regular expressions, choices and grammars, as masks over the vocabulary.

Knows nothing of models, requests or HTTP. The only package that speaks to the grammar library.
"""
