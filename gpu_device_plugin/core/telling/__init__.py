"""Texts for people: explanations, tables and the doctor's findings."""
