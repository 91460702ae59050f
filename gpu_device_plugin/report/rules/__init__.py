"""Views, tables, findings and explanations, made of values that were read."""
