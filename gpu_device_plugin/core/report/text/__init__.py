"""Sentences, and the alignment of texts in columns."""
