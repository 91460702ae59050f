"""ResourceSlices, claims and what their containers get: values in, values out."""
